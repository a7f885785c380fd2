package wire

import (
	"fmt"
	"math"
	"slices"

	"downbeat.dev/core/model"
)

const (
	peerBytesMin   = 6
	tensorBytesMin = 2 + 2 + 1 + 2
	modelBytesMin  = 4 + 8 + 4 + 1 + 3*2 + 1 + 4 + 2 + 2
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

// HelloPeekBytes is how much of a hello PeekHello may need.
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
	if version < 5 { // such a peer sends batches of all that it is told of
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

// loadedEverywhere is how many of the first models every GPU has.
func (h *BackendHello) loadedEverywhere() int {
	// A peer of version 4 knows models by their place in the list, so only a first part can be told.
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

	// A backend of an earlier version has every model on every GPU: a nil Loaded says so.
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
	e.text("text", m.Text[:min(len(m.Text), TextBytesMax)], TextBytesMax)
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

// AppendModels appends frames carrying m.
func AppendModels(dst []byte, m []model.Info) ([]byte, error) { return appendModels(dst, m, Version) }

func appendModels(dst []byte, m []model.Info, version uint16) ([]byte, error) {
	if version < 6 { // such a peer would take a family for a model without a version
		m = slices.DeleteFunc(slices.Clone(m), func(i model.Info) bool { return i.IsFamily() })
	}
	return appendVaried(dst, TypeModels, version, m, (*encoder).putModel)
}

// DecodeModels decodes f into fresh memory: catalogues are rare.
func DecodeModels(f Frame) ([]model.Info, error) {
	return decodeVaried(nil, f, TypeModels, (*decoder).readModel)
}

// AppendPeers appends frames carrying m.
func AppendPeers(dst []byte, m []Peer) ([]byte, error) { return appendPeers(dst, m, Version) }

func appendPeers(dst []byte, m []Peer, version uint16) ([]byte, error) {
	if version < NodesVersion { // such a peer would take a backend for a frontend
		m = slices.DeleteFunc(slices.Clone(m), func(p Peer) bool { return p.Node != 0 })
	}
	return appendVaried(dst, TypePeers, version, m, func(e *encoder, p *Peer) {
		e.u32(p.Frontend)
		e.text("data address", p.DataAddr, AddrBytesMax)
		if version >= StagesVersion {
			e.bool(p.Staged)
		}
		if version >= NodesVersion {
			e.u32(p.Node)
		}
	})
}

// DecodePeers decodes f, using dst's memory for the slice; addresses are fresh strings.
func DecodePeers(dst []Peer, f Frame) ([]Peer, error) {
	return decodeVaried(dst[:0], f, TypePeers, func(d *decoder, p *Peer) {
		p.Frontend, p.DataAddr = d.u32(), d.text("data address", AddrBytesMax)
		if d.hasFieldsOf(StagesVersion) {
			p.Staged = d.bool("staged")
		}
		if d.hasFieldsOf(NodesVersion) {
			p.Node = d.readNode()
		}
	})
}

// readNode reads a node's number, which a descriptor has to have room for.
func (d *decoder) readNode() uint32 {
	n := d.u32()
	// A scheduler of before protocol 9 may give away one more: see model.Composed.
	if n > model.Composed {
		d.keepError(fmt.Errorf("%w: node %d, at most %d", ErrLimit, n, model.NodesMax))
	}
	return n
}

func (e *encoder) putModel(m *model.Info) {
	e.u32(m.ID)
	e.u64(uint64(m.SLO))
	e.u32(m.BatchMax)
	e.bool(m.Ready)
	e.text("model name", m.Name, NameBytesMax)
	e.text("model version", m.Version, NameBytesMax)
	e.text("platform", m.Platform, NameBytesMax)
	e.bool(m.Unbatched)
	e.u32(m.InputMax)
	e.text("configuration of "+m.Name, m.Config, model.ConfigBytesMax)
	e.putTensors("inputs of "+m.Name, m.Inputs)
	e.putTensors("outputs of "+m.Name, m.Outputs)

	// Fields of later versions stand at the end, so that an earlier peer's model is a prefix of this one.
	if e.version >= 5 {
		e.bool(m.SLOBinds)
		e.putSmall("priority of "+m.Name, int(m.Priority), 255)
		e.u32(m.QueueMax)
		e.text("reason of "+m.Name, m.Reason, model.LabelBytesMax)
	}
	if e.version >= 6 {
		e.familyOf(m)
	}
	if e.version >= SequenceVersion {
		e.sequenceOf(m)
	}
	if e.version >= OptionalVersion {
		e.u64(m.Optional)
		e.text("model that "+m.Name+" is an exit of", m.ExitOf, NameBytesMax)
		e.u64(m.Shared)
	}
}

// familyOf writes what a model is within a family, or what a family consists of.
func (e *encoder) familyOf(m *model.Info) {
	e.text("family of "+m.Name, m.Family, NameBytesMax)
	e.text("variant of "+m.Name, m.Variant, NameBytesMax)
	e.u64(math.Float64bits(m.Accuracy))
	e.u64(m.Static)
	e.u64(m.Dynamic)
	e.putSmall("variants of "+m.Name, len(m.Variants), model.VariantsMax)
	for _, id := range m.Variants {
		e.u32(id)
	}
	e.putSmall("floors of "+m.Name, len(m.Floors), model.FloorsMax)
	for _, f := range m.Floors {
		e.u64(math.Float64bits(f.Accuracy))
		e.u32(f.ID)
	}
}

func (d *decoder) familyOf(m *model.Info) {
	m.Family, m.Variant = d.text("family", NameBytesMax), d.text("variant", NameBytesMax)
	m.Accuracy = d.readShare("accuracy")
	m.Static, m.Dynamic = d.u64(), d.u64()

	if n := d.readSmall("variants", model.VariantsMax, 4); n > 0 {
		m.Variants = make([]uint32, n)
	}
	for i := range m.Variants {
		m.Variants[i] = d.u32()
	}

	if n := d.readSmall("floors", model.FloorsMax, 12); n > 0 {
		m.Floors = make([]model.Floor, n)
	}
	for i := range m.Floors {
		m.Floors[i] = model.Floor{Accuracy: d.readShare("floor"), ID: d.u32()}
	}
}

func (d *decoder) readModel(m *model.Info) {
	m.ID, m.SLO, m.BatchMax = d.u32(), int64(d.u64()), d.u32()
	m.Ready = d.bool("ready")
	m.Name = d.text("model name", NameBytesMax)
	m.Version = d.text("model version", NameBytesMax)
	m.Platform = d.text("platform", NameBytesMax)
	m.Unbatched = d.bool("unbatched")
	m.InputMax = d.u32()
	m.Config = d.text("configuration", model.ConfigBytesMax)
	m.Inputs = d.readTensors("inputs")
	m.Outputs = d.readTensors("outputs")

	if d.hasFieldsOf(5) {
		m.SLOBinds = d.bool("SLO binds")
		m.Priority = d.u8()
		m.QueueMax = d.u32()
		m.Reason = d.text("reason", model.LabelBytesMax)
	}
	if d.hasFieldsOf(6) {
		d.familyOf(m)
	}
	if d.hasFieldsOf(SequenceVersion) {
		d.sequenceOf(m)
	}
	if d.hasFieldsOf(OptionalVersion) {
		m.Optional = d.u64()
		m.ExitOf, m.Shared = d.text("model that it is an exit of", NameBytesMax), d.u64()
	}
}

func (e *encoder) putTensors(what string, ts []model.Tensor) {
	e.putSmall(what, len(ts), TensorsMax)
	for i := range ts {
		t := &ts[i]
		e.text("tensor name", t.Name, NameBytesMax)
		e.text("datatype", string(t.Datatype), NameBytesMax)
		e.putSmall(fmt.Sprintf("dimensions of tensor %q", t.Name), len(t.Shape), RankMax)
		for _, n := range t.Shape {
			e.u64(uint64(n))
		}

		e.putCount(fmt.Sprintf("labels of tensor %q", t.Name), len(t.Labels), model.LabelsMax)
		for _, label := range t.Labels {
			e.text("label", label, model.LabelBytesMax)
		}
	}
}

func (d *decoder) readTensors(what string) []model.Tensor {
	n := d.readSmall(what, TensorsMax, tensorBytesMin)
	if n == 0 {
		return nil
	}

	ts := make([]model.Tensor, n)
	for i := range ts {
		t := &ts[i]
		t.Name = d.text("tensor name", NameBytesMax)
		t.Datatype = model.Datatype(d.text("datatype", NameBytesMax))

		if r := d.readSmall("dimensions", RankMax, 8); r > 0 {
			t.Shape = make([]int64, r)
		}
		for k := range t.Shape {
			t.Shape[k] = int64(d.u64())
		}

		if n := d.readCount("labels", model.LabelsMax, 2); n > 0 {
			t.Labels = make([]string, n)
		}
		for k := range t.Labels {
			t.Labels[k] = d.text("label", model.LabelBytesMax)
		}
	}
	return ts
}
