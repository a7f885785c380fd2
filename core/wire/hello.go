package wire

import "fmt"

const (
	peerBytesMin  = 6
	modelBytesMin = 4 + 8 + 4 + 1 + 3*2 + 2
)

// AppendFrontendHello appends a frame carrying h. The version and the token come first, so that a
// scheduler can refuse a stranger before it reads more.
func AppendFrontendHello(dst []byte, h *FrontendHello) ([]byte, error) {
	e := begin(dst, TypeFrontendHello)
	e.u16(h.Version)
	e.text("token", h.Token, TokenBytesMax)
	e.text("name", h.Name, NameBytesMax)
	e.text("data address", h.DataAddr, AddrBytesMax)
	e.u32(h.Window)
	return e.end(1)
}

// DecodeFrontendHello decodes a frame that carries one FrontendHello.
func DecodeFrontendHello(f Frame) (h FrontendHello, err error) {
	d := open(f, TypeFrontendHello, true)
	h.Version = d.u16()
	h.Token = d.text("token", TokenBytesMax)
	h.Name = d.text("name", NameBytesMax)
	h.DataAddr = d.text("data address", AddrBytesMax)
	h.Window = d.u32()
	return h, d.close()
}

// HelloPeekBytes is how much of a hello PeekHello may need.
const HelloPeekBytes = 2 + 2 + TokenBytesMax

// PeekHello reads the version and the token from the start of a hello's body.
func PeekHello(body []byte) (version uint16, token string, err error) {
	d := decoder{b: body}
	version = d.u16()
	token = d.text("token", TokenBytesMax)
	return version, token, d.err
}

// AppendBackendHello appends a frame carrying h.
func AppendBackendHello(dst []byte, h *BackendHello) ([]byte, error) {
	e := begin(dst, TypeBackendHello)
	e.u16(h.Version)
	e.text("token", h.Token, TokenBytesMax)
	e.text("name", h.Name, NameBytesMax)
	e.text("sub-cluster", h.SubCluster, NameBytesMax)
	e.count("gpus", len(h.GPUs), GPUsMax)
	for _, g := range h.GPUs {
		e.text("gpu name", g, NameBytesMax)
	}
	e.count("models", len(h.Models), ModelsMax)
	for i := range h.Models {
		m := &h.Models[i]
		e.model(&m.Info)
		e.count("profile of "+m.Info.Name, len(m.Profile), ProfileMax)
		for _, ns := range m.Profile {
			e.u64(uint64(ns))
		}
	}
	return e.end(1)
}

// DecodeBackendHello decodes a frame that carries one BackendHello.
func DecodeBackendHello(f Frame) (h BackendHello, err error) {
	d := open(f, TypeBackendHello, true)
	h.Version = d.u16()
	h.Token = d.text("token", TokenBytesMax)
	h.Name = d.text("name", NameBytesMax)
	h.SubCluster = d.text("sub-cluster", NameBytesMax)
	if n := d.count("gpus", GPUsMax, 2); n > 0 {
		h.GPUs = make([]string, n)
	}
	for i := range h.GPUs {
		h.GPUs[i] = d.text("gpu name", NameBytesMax)
	}
	if n := d.count("models", ModelsMax, modelBytesMin+2); n > 0 {
		h.Models = make([]BackendModel, n)
	}
	for i := range h.Models {
		m := &h.Models[i]
		d.model(&m.Info)
		if n := d.count("profile", ProfileMax, 8); n > 0 {
			m.Profile = make([]int64, n)
		}
		for k := range m.Profile {
			m.Profile[k] = int64(d.u64())
		}
	}
	return h, d.close()
}

// AppendWelcome appends a frame carrying m.
func AppendWelcome(dst []byte, m Welcome) []byte {
	at := len(dst)
	dst = grow(dst, HeaderBytes+welcomeBytes)
	putHeader(dst[at:], TypeWelcome, 1)
	le.PutUint16(dst[at+HeaderBytes:], m.Version)
	le.PutUint32(dst[at+HeaderBytes+2:], m.Session)
	return dst
}

// DecodeWelcome decodes a frame that carries one Welcome.
func DecodeWelcome(f Frame) (Welcome, error) {
	if err := expectOne(f, TypeWelcome, welcomeBytes); err != nil {
		return Welcome{}, err
	}
	return Welcome{Version: le.Uint16(f.Body), Session: le.Uint32(f.Body[2:])}, nil
}

// AppendRefusal appends a frame carrying m; its text is cut to TextBytesMax.
func AppendRefusal(dst []byte, m Refusal) []byte {
	e := begin(dst, TypeRefusal)
	e.bool(m.Fatal)
	e.text("text", m.Text[:min(len(m.Text), TextBytesMax)], TextBytesMax)
	dst, _ = e.end(1)
	return dst
}

// DecodeRefusal decodes a frame that carries one Refusal.
func DecodeRefusal(f Frame) (m Refusal, err error) {
	d := open(f, TypeRefusal, true)
	m.Fatal = d.bool("fatal")
	m.Text = d.text("text", TextBytesMax)
	return m, d.close()
}

// AppendModels appends frames carrying m.
func AppendModels(dst []byte, m []ModelInfo) ([]byte, error) {
	for len(m) > 0 {
		e := begin(dst, TypeModels)
		n := 0
		for n < len(m) && n < MessagesMax && len(e.b)-e.at < frameBytesSoft {
			e.model(&m[n])
			n++
		}
		var err error
		if dst, err = e.end(n); err != nil {
			return dst, err
		}
		m = m[n:]
	}
	return dst, nil
}

// DecodeModels decodes f into fresh memory: catalogues are rare.
func DecodeModels(f Frame) ([]ModelInfo, error) {
	d := open(f, TypeModels, false)
	if d.err != nil {
		return nil, d.err
	}
	var out []ModelInfo
	for range f.Count {
		var m ModelInfo
		d.model(&m)
		if d.err != nil {
			break
		}
		out = append(out, m)
	}
	return out, d.close()
}

// AppendPeers appends frames carrying m.
func AppendPeers(dst []byte, m []Peer) ([]byte, error) {
	for len(m) > 0 {
		e := begin(dst, TypePeers)
		n := 0
		for n < len(m) && n < MessagesMax && len(e.b)-e.at < frameBytesSoft {
			e.u32(m[n].Frontend)
			e.text("data address", m[n].DataAddr, AddrBytesMax)
			n++
		}
		var err error
		if dst, err = e.end(n); err != nil {
			return dst, err
		}
		m = m[n:]
	}
	return dst, nil
}

// DecodePeers decodes f, using dst's memory for the slice; addresses are fresh strings.
func DecodePeers(dst []Peer, f Frame) ([]Peer, error) {
	d := open(f, TypePeers, false)
	if d.err != nil {
		return dst[:0], d.err
	}
	dst = dst[:0]
	for range f.Count {
		p := Peer{Frontend: d.u32(), DataAddr: d.text("data address", AddrBytesMax)}
		if d.err != nil {
			break
		}
		dst = append(dst, p)
	}
	return dst, d.close()
}

func (e *encoder) model(m *ModelInfo) {
	e.u32(m.ID)
	e.u64(uint64(m.SLO))
	e.u32(m.BatchMax)
	e.bool(m.Ready)
	e.text("model name", m.Name, NameBytesMax)
	e.text("model version", m.Version, NameBytesMax)
	e.text("platform", m.Platform, NameBytesMax)
	e.tensors("inputs of "+m.Name, m.Inputs)
	e.tensors("outputs of "+m.Name, m.Outputs)
}

func (d *decoder) model(m *ModelInfo) {
	m.ID, m.SLO, m.BatchMax = d.u32(), int64(d.u64()), d.u32()
	m.Ready = d.bool("ready")
	m.Name = d.text("model name", NameBytesMax)
	m.Version = d.text("model version", NameBytesMax)
	m.Platform = d.text("platform", NameBytesMax)
	m.Inputs = d.tensors("inputs")
	m.Outputs = d.tensors("outputs")
}

func (e *encoder) tensors(what string, ts []Tensor) {
	e.small(what, len(ts), TensorsMax)
	for i := range ts {
		t := &ts[i]
		e.text("tensor name", t.Name, NameBytesMax)
		e.text("datatype", t.Datatype, NameBytesMax)
		e.small(fmt.Sprintf("dimensions of tensor %q", t.Name), len(t.Shape), RankMax)
		for _, n := range t.Shape {
			e.u64(uint64(n))
		}
	}
}

func (d *decoder) tensors(what string) []Tensor {
	n := d.small(what, TensorsMax, 5)
	if n == 0 {
		return nil
	}
	ts := make([]Tensor, n)
	for i := range ts {
		t := &ts[i]
		t.Name = d.text("tensor name", NameBytesMax)
		t.Datatype = d.text("datatype", NameBytesMax)
		if r := d.small("dimensions", RankMax, 8); r > 0 {
			t.Shape = make([]int64, r)
		}
		for k := range t.Shape {
			t.Shape[k] = int64(d.u64())
		}
	}
	return ts
}
