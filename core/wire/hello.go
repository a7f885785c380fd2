package wire

import (
	"slices"

	"downbeat.dev/core/model"
)

// AppendFrontendHello appends a frame carrying h. The version and the token come first, so that a
// scheduler can refuse a stranger before it reads more.
func AppendFrontendHello(dst []byte, h *FrontendHello) ([]byte, error) {
	e := beginFrame(dst, TypeFrontendHello)
	e.u16(h.Version)
	e.text("token", h.Token, TokenBytesMax)
	e.text("name", h.Name, NameBytesMax)
	e.text("data address", h.DataAddr, AddrBytesMax)
	e.u32(h.Window)
	return e.endFrame(1)
}

// DecodeFrontendHello decodes a frame that carries one FrontendHello.
func DecodeFrontendHello(f Frame) (h FrontendHello, err error) {
	d := openFrame(f, TypeFrontendHello, true)
	h.Version = d.u16()
	h.Token = d.text("token", TokenBytesMax)
	h.Name = d.text("name", NameBytesMax)
	h.DataAddr = d.text("data address", AddrBytesMax)
	h.Window = d.u32()
	return h, d.closeFrame()
}

// HelloPeekBytes is the most bytes of a hello that PeekHello needs.
const HelloPeekBytes = 2 + 2 + TokenBytesMax

// PeekHello reads the version and the token from the start of a hello's body.
func PeekHello(body []byte) (version uint16, token string, err error) {
	// Nothing else is decoded before the token is compared.
	d := decoder{b: body}
	version = d.u16()
	token = d.text("token", TokenBytesMax)
	return version, token, d.err
}

// AppendBackendHello appends a frame carrying h.
func AppendBackendHello(dst []byte, h *BackendHello) ([]byte, error) {
	return appendBackendHello(dst, h, Version)
}

func appendBackendHello(dst []byte, h *BackendHello, version uint16) ([]byte, error) {
	e := beginFrameAs(dst, TypeBackendHello, version)
	e.u16(h.Version)
	e.text("token", h.Token, TokenBytesMax)
	e.text("name", h.Name, NameBytesMax)
	e.text("sub-cluster", h.SubCluster, NameBytesMax)

	e.putCount("gpus", len(h.GPUs), GPUsMax)
	for _, g := range h.GPUs {
		e.text("gpu name", g, NameBytesMax)
	}

	models := h.Models
	if version < 5 { // such a peer sends batches of all models in the list
		models = models[:h.loadedEverywhere()]
	}

	e.putCount("models", len(models), ModelsMax)
	for i := range models {
		e.backendModel(&models[i])
	}

	if version >= 5 {
		for i := range models {
			e.loaded(models[i].Loaded)
		}
		e.putCount("models that are not served", len(h.Failed), ModelsMax)
		for i := range h.Failed {
			e.putModel(&h.Failed[i])
		}
	}
	if version >= GPUsVersion {
		e.putCount("details of gpus", len(h.Details), GPUsMax)
		for i := range h.Details {
			e.text("gpu kind", h.Details[i].Kind, NameBytesMax)
			e.u64(h.Details[i].Memory)
		}
	}
	if version >= NodesVersion {
		e.text("data address", h.DataAddr, AddrBytesMax)
	}
	return e.endFrame(1)
}

// loadedEverywhere returns how many of the first models are loaded on every GPU.
func (h *BackendHello) loadedEverywhere() int {
	// A peer of version 4 numbers models by their place in the list, so only a prefix can be sent.
	n := slices.IndexFunc(h.Models, func(m BackendModel) bool { return slices.Contains(m.Loaded, false) })
	if n < 0 {
		return len(h.Models)
	}
	return n
}

// DecodeBackendHello decodes a frame that carries one BackendHello.
func DecodeBackendHello(f Frame) (h BackendHello, err error) {
	d := openFrame(f, TypeBackendHello, true)
	h.Version = d.u16()
	h.Token = d.text("token", TokenBytesMax)
	h.Name = d.text("name", NameBytesMax)
	h.SubCluster = d.text("sub-cluster", NameBytesMax)

	if n := d.readCount("gpus", GPUsMax, 2); n > 0 {
		h.GPUs = make([]string, n)
	}

	for i := range h.GPUs {
		h.GPUs[i] = d.text("gpu name", NameBytesMax)
	}

	if n := d.readCount("models", ModelsMax, modelBytesMin+2); n > 0 {
		h.Models = make([]BackendModel, n)
	}
	for i := range h.Models {
		d.backendModel(&h.Models[i])
	}

	// A backend of an earlier version has every model on every GPU, which a nil Loaded means.
	if d.hasFieldsOf(5) {
		for i := range h.Models {
			h.Models[i].Loaded = d.loaded()
		}
		if n := d.readCount("models that are not served", ModelsMax, modelBytesMin); n > 0 {
			h.Failed = make([]model.Info, n)
		}
		for i := range h.Failed {
			d.readModel(&h.Failed[i])
		}
	}

	if d.hasFieldsOf(GPUsVersion) {
		if n := d.readCount("details of gpus", GPUsMax, 2+8); n > 0 {
			h.Details = make([]GPUDetail, n)
		}
		for i := range h.Details {
			h.Details[i] = GPUDetail{Kind: d.text("gpu kind", NameBytesMax), Memory: d.u64()}
		}
	}
	if d.hasFieldsOf(NodesVersion) {
		h.DataAddr = d.text("data address", AddrBytesMax)
	}
	return h, d.closeFrame()
}

// AppendWelcome appends a frame carrying m.
func AppendWelcome(dst []byte, m Welcome) []byte {
	at := len(dst)
	dst = growBytes(dst, HeaderBytes+welcomeBytes)
	putHeader(dst[at:], TypeWelcome, 1)
	le.PutUint16(dst[at+HeaderBytes:], m.Version)
	le.PutUint32(dst[at+HeaderBytes+2:], m.Session)
	return dst
}

// DecodeWelcome decodes a frame that carries one Welcome.
func DecodeWelcome(f Frame) (Welcome, error) {
	if err := checkOne(f, TypeWelcome, welcomeBytes); err != nil {
		return Welcome{}, err
	}
	return Welcome{Version: le.Uint16(f.Body), Session: le.Uint32(f.Body[2:])}, nil
}

// AppendRefusal appends a frame carrying m; its text is cut to TextBytesMax.
func AppendRefusal(dst []byte, m Refusal) []byte {
	e := beginFrame(dst, TypeRefusal)
	e.bool(m.Fatal)
	e.text("text", cutText(m.Text), TextBytesMax)
	dst, _ = e.endFrame(1)
	return dst
}

// DecodeRefusal decodes a frame that carries one Refusal.
func DecodeRefusal(f Frame) (m Refusal, err error) {
	d := openFrame(f, TypeRefusal, true)
	m.Fatal = d.bool("fatal")
	m.Text = d.text("text", TextBytesMax)
	return m, d.closeFrame()
}
