package wire

import (
	"fmt"
	"math"

	"downbeat.dev/core/model"
)

// The size of a ResultHeader, without the stages and with them.
const (
	ResultHeaderBytes = 24
	StagedHeaderBytes = ResultHeaderBytes + stagesBytes
	stagesBytes       = 12
)

// Stages are how long a request's batch took on its backend before and after its execution, in ns. Values are capped
// at 2³² ns, 4.3 s.
type Stages struct {
	Fetch uint32 // from the order's arrival until all inputs were there
	Wait  uint32 // from then until the batch began
	Reply uint32 // from its end until its outputs were sent
}

// StageOf converts ns to a stage's value.
func StageOf(ns int64) uint32 { return uint32(min(max(ns, 0), math.MaxUint32)) }

// Bits of the reason's byte: stages follow the header; the backend holds outputs.
const (
	stagedBit = 0x80
	heldBit   = 0x40
)

// ResultHeader precedes every message that a backend sends to a frontend on the data plane. With ReasonNone the
// model's outputs follow, Output bytes in total, in the order of model.Info.Outputs.
//
// Layout, little-endian: u64 id, u8 reason, u24 answer, u32 output bytes, u64 execution ns; if the reason's highest
// bit is set, u32 fetch, u32 wait, u32 reply in ns. The reason's next bit is Held.
type ResultHeader struct {
	ID     uint64       // the frontend's own request id
	Reason model.Reason // ReasonNone: the outputs follow
	Output uint32       // bytes that follow
	Exec   int64        // ns that the batch took on the GPU
	Answer uint32       // since protocol 6: the variant of a family, as in Execute.Answer; 0: the requested model
	Staged bool         // since protocol 7, to frontends with Peer.Staged: Stages are present
	Stages Stages
	Held   bool // to a frontend that asked with Composed: the body locates the outputs (DecodeHeld)
}

// Append appends the header: ResultHeaderBytes, or StagedHeaderBytes.
func (h ResultHeader) Append(dst []byte) []byte {
	at := len(dst)
	dst = growBytes(dst, ResultHeaderBytes)
	b := dst[at:]
	le.PutUint64(b, h.ID)
	// Reason and answer share a word: a frontend of an earlier protocol reads the first byte only.
	le.PutUint32(b[8:], uint32(h.Reason)|h.Answer<<8)
	le.PutUint32(b[12:], h.Output)
	le.PutUint64(b[16:], uint64(h.Exec))
	if h.Held {
		b[8] |= heldBit
	}
	if !h.Staged {
		return dst
	}

	b[8] |= stagedBit
	dst = le.AppendUint32(dst, h.Stages.Fetch)
	dst = le.AppendUint32(dst, h.Stages.Wait)
	return le.AppendUint32(dst, h.Stages.Reply)
}

// DecodeResult splits a message into its header and the outputs. It refuses a message whose length differs from the
// header's.
func DecodeResult(msg []byte) (ResultHeader, []byte, error) {
	if len(msg) < ResultHeaderBytes {
		return ResultHeader{}, nil, fmt.Errorf("%w: result of %d bytes, its header takes %d", ErrMalformed, len(msg), ResultHeaderBytes)
	}

	h := ResultHeader{ID: le.Uint64(msg), Reason: model.Reason(msg[8] &^ (stagedBit | heldBit)), Held: msg[8]&heldBit != 0, Output: le.Uint32(msg[12:]), Exec: int64(le.Uint64(msg[16:])),
		Answer: le.Uint32(msg[8:]) >> 8}
	out := msg[ResultHeaderBytes:]
	if h.Staged = msg[8]&stagedBit != 0; h.Staged {
		if len(out) < stagesBytes {
			return h, nil, fmt.Errorf("%w: result %d of %d bytes, its header with stages takes %d", ErrMalformed, h.ID, len(msg), StagedHeaderBytes)
		}
		h.Stages = Stages{Fetch: le.Uint32(out), Wait: le.Uint32(out[4:]), Reply: le.Uint32(out[8:])}
		out = out[stagesBytes:]
	}

	// Another length would shift every tensor.
	if uint64(h.Output) != uint64(len(out)) {
		return h, nil, fmt.Errorf("%w: result %d says %d output bytes and has %d", ErrMalformed, h.ID, h.Output, len(out))
	}
	return h, out, nil
}
