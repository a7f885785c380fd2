package wire

import (
	"fmt"
	"math"
)

// Messages by which schedulers of a cluster and their peers agree on the leader, since version 5. A peer of version 4
// has one scheduler and takes it for the leader.

// Lead reports whether a scheduler leads, and in which epoch. Scheduler → any peer, after the Welcome and on every
// change.
type Lead struct {
	Epoch uint64 // of the leader that the scheduler knows of; peers obey the highest
	Leads bool   // the scheduler itself leads
	GPUs  uint32 // that are connected to the scheduler
}

// Follow reports whom a peer obeys. Frontend or backend → each of its schedulers, on every change.
type Follow struct {
	Epoch uint64 // the highest that the peer has heard of
	Alive bool   // its link to that epoch's leader is open
}

// StandbyHello opens the session of a standby with the leader, which sends it measurements.
type StandbyHello struct {
	Version uint16
	Token   string
	Name    string
}

// Learned is a scheduler's measurements of a model. Leader → standby, every second.
type Learned struct {
	Model, Version string
	Rate           float64 // arrivals a second
	Margin         int64   // ns before the last moment at which the scheduler starts its batches
	Overrun        int64   // ns by which batches on the model's GPUs end later than planned
}

const (
	leadBytes       = 8 + 1 + 4
	followBytes     = 8 + 1
	learnedBytesMin = 2 + 2 + 3*8
)

// AppendLead appends one Lead.
func AppendLead(dst []byte, m Lead) []byte {
	// A message of fixed size needs no encoder.
	at := len(dst)
	dst = growBytes(dst, HeaderBytes+leadBytes)
	putHeader(dst[at:], TypeLead, 1)
	b := dst[at+HeaderBytes:]
	le.PutUint64(b, m.Epoch)
	b[8] = flagOf(m.Leads)
	le.PutUint32(b[9:], m.GPUs)
	return dst
}

// DecodeLead decodes a frame that carries one Lead.
func DecodeLead(f Frame) (Lead, error) {
	if err := checkOne(f, TypeLead, leadBytes); err != nil {
		return Lead{}, err
	}
	leads, err := flag(f.Body[8], "leads")
	return Lead{Epoch: le.Uint64(f.Body), Leads: leads, GPUs: le.Uint32(f.Body[9:])}, err
}

// AppendFollow appends one Follow.
func AppendFollow(dst []byte, m Follow) []byte {
	at := len(dst)
	dst = growBytes(dst, HeaderBytes+followBytes)
	putHeader(dst[at:], TypeFollow, 1)
	le.PutUint64(dst[at+HeaderBytes:], m.Epoch)
	dst[at+HeaderBytes+8] = flagOf(m.Alive)
	return dst
}

// DecodeFollow decodes a frame that carries one Follow.
func DecodeFollow(f Frame) (Follow, error) {
	if err := checkOne(f, TypeFollow, followBytes); err != nil {
		return Follow{}, err
	}
	alive, err := flag(f.Body[8], "alive")
	return Follow{Epoch: le.Uint64(f.Body), Alive: alive}, err
}

func flagOf(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func flag(b byte, what string) (bool, error) {
	if b > 1 {
		return false, fmt.Errorf("%w: %s is %d, want 0 or 1", ErrMalformed, what, b)
	}
	return b == 1, nil
}

// AppendStandbyHello appends a frame carrying h, with version and token first as in every hello.
func AppendStandbyHello(dst []byte, h *StandbyHello) ([]byte, error) {
	e := beginFrame(dst, TypeStandbyHello)
	e.u16(h.Version)
	e.text("token", h.Token, TokenBytesMax)
	e.text("name", h.Name, NameBytesMax)
	return e.endFrame(1)
}

// DecodeStandbyHello decodes a frame that carries one StandbyHello.
func DecodeStandbyHello(f Frame) (h StandbyHello, err error) {
	d := openFrame(f, TypeStandbyHello, true)
	h.Version = d.u16()
	h.Token = d.text("token", TokenBytesMax)
	h.Name = d.text("name", NameBytesMax)
	return h, d.closeFrame()
}

// AppendLearned appends frames carrying m.
func AppendLearned(dst []byte, m []Learned) ([]byte, error) {
	return appendVaried(dst, TypeLearned, Version, m, func(e *encoder, l *Learned) {
		e.text("model name", l.Model, NameBytesMax)
		e.text("model version", l.Version, NameBytesMax)
		e.u64(math.Float64bits(l.Rate))
		e.u64(uint64(l.Margin))
		e.u64(uint64(l.Overrun))
	})
}

// DecodeLearned decodes f. It refuses a rate that is not a number or negative.
func DecodeLearned(f Frame) ([]Learned, error) {
	d := openFrame(f, TypeLearned, false)
	if d.err != nil {
		return nil, d.err
	}

	// The header's check bounds Count by the frame's bytes.
	out := make([]Learned, 0, f.Count)
	for range f.Count {
		m := Learned{Model: d.text("model name", NameBytesMax), Version: d.text("model version", NameBytesMax), Rate: math.Float64frombits(d.u64()),
			Margin: int64(d.u64()), Overrun: int64(d.u64())}
		if d.err != nil {
			break
		}

		// A standby plans with the rate when it takes over, and a NaN would spoil every sum.
		if !(m.Rate >= 0 && m.Rate <= math.MaxFloat64) {
			return nil, fmt.Errorf("%w: rate of model %.20q is %v, want 0 or more", ErrMalformed, m.Model, m.Rate)
		}
		out = append(out, m)
	}
	return out, d.closeFrame()
}
