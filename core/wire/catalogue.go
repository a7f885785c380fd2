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

// readNode reads a node's number and checks that it fits a descriptor.
func (d *decoder) readNode() uint32 {
	n := d.u32()
	// A scheduler before protocol 9 may assign one more: see model.Composed.
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

	// Fields of later versions come last, so an earlier peer's model is a prefix of this one.
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
	if e.version >= PictureVersion {
		e.picturesOf(m)
	}
}

// familyOf writes a model's place within a family, or a family's members.
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

	// Later versions of the protocol appended their fields in this order.
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
	if d.hasFieldsOf(PictureVersion) {
		d.picturesOf(m)
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
