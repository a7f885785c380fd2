package wire

import (
	"fmt"

	"downbeat.dev/core/model"
)

// ResultHeaderBytes is the size of a ResultHeader.
const ResultHeaderBytes = 24

// ResultHeader leads every message that a backend sends to a frontend on the data plane. With
// ReasonNone the model's outputs follow, Output bytes in all, in the order of model.Info.Outputs.
//
// Layout, little-endian: u64 id, u8 reason, u24 answer, u32 output bytes, u64 execution ns.
type ResultHeader struct {
	ID     uint64       // the frontend's own request id
	Reason model.Reason // ReasonNone: the outputs follow
	Output uint32       // bytes that follow
	Exec   int64        // ns that the batch took on the GPU
	Answer uint32       // since protocol 6: which variant of a family it was, as Execute says it; 0: what was asked for
}

// Append appends the header's 24 bytes.
func (h ResultHeader) Append(dst []byte) []byte {
	at := len(dst)
	dst = grow(dst, ResultHeaderBytes)
	b := dst[at:]
	le.PutUint64(b, h.ID)
	// Reason and answer share a word: a frontend of an earlier protocol reads the first byte only.
	le.PutUint32(b[8:], uint32(h.Reason)|h.Answer<<8)
	le.PutUint32(b[12:], h.Output)
	le.PutUint64(b[16:], uint64(h.Exec))
	return dst
}

// DecodeResult splits a message into its header and the outputs. It refuses a message whose length
// is not what the header says.
func DecodeResult(msg []byte) (ResultHeader, []byte, error) {
	if len(msg) < ResultHeaderBytes {
		return ResultHeader{}, nil, fmt.Errorf("%w: result of %d bytes, its header takes %d", ErrMalformed, len(msg), ResultHeaderBytes)
	}

	h := ResultHeader{ID: le.Uint64(msg), Reason: model.Reason(msg[8]), Output: le.Uint32(msg[12:]), Exec: int64(le.Uint64(msg[16:])),
		Answer: le.Uint32(msg[8:]) >> 8}
	if uint64(h.Output) != uint64(len(msg)-ResultHeaderBytes) {
		return h, nil, fmt.Errorf("%w: result %d says %d output bytes and has %d", ErrMalformed, h.ID, h.Output, len(msg)-ResultHeaderBytes)
	}
	return h, msg[ResultHeaderBytes:], nil
}
