package rdma

import (
	"encoding/binary"
	"fmt"
)

// Version of the handshake and the frames. A peer that speaks another is refused.
const Version = 2

// Limits of one chain and of what may be under way with one peer.
const (
	chainBytesMax = 1 << 30 // bytes that one chain reads
	opsMax        = 1024    // chains under way to one peer
	servedMax     = 1 << 16 // reads of one peer waiting for it to take their bytes
	queueMax      = 128 << 20
)

type kind uint8

// Frames of the byte-stream protocol, little-endian. Every frame is a header of 16 bytes and a body.
const (
	frameRead    kind = 1 + iota // count × {key u64, offset u64, length u32}
	frameData                    // count status bytes, then the bytes of every read with status 0
	frameMessage                 // the message
	frameEcho                    // empty; id is the sender's stamp
	frameEchoed                  // empty; id as in the echo
	frameSegment                 // empty; id is a live key: asks for direct access to its segment
	frameGranted                 // grantedBody; over a Unix socket a descriptor travels beside it
	frameVerbs                   // verbsFrame
	frameTaken                   // empty; id is the number of an announced message
	frameKindsEnd
)

const (
	headerBytes  = 16
	readBytes    = 20
	grantedBytes = 32
	verbsBytes   = 96
)

// frame is the header: body u32, kind u8, flags u8 (zero), count u16, id u64.
type frame struct {
	body  uint32
	kind  kind
	count uint16
	id    uint64
}

func (f frame) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, f.body)
	b = append(b, byte(f.kind), 0)
	b = binary.LittleEndian.AppendUint16(b, f.count)
	return binary.LittleEndian.AppendUint64(b, f.id)
}

// parseFrame decodes a header and checks every length in it against its limit.
func parseFrame(b []byte) (frame, error) {
	f := frame{
		body:  binary.LittleEndian.Uint32(b),
		kind:  kind(b[4]),
		count: binary.LittleEndian.Uint16(b[6:]),
		id:    binary.LittleEndian.Uint64(b[8:]),
	}
	if f.kind == 0 || f.kind >= frameKindsEnd || b[5] != 0 {
		return f, fmt.Errorf("%w: frame kind %d, flags %d", ErrProtocol, b[4], b[5])
	}
	low, high, counted := f.bounds()
	if f.body < low || f.body > high || (f.count != 0) != counted || f.count > ChainMax {
		return f, fmt.Errorf("%w: frame kind %d with %d bytes and count %d; %d to %d bytes allowed",
			ErrProtocol, f.kind, f.body, f.count, low, high)
	}
	return f, nil
}

// bounds gives the body's allowed length and whether the frame carries a count.
func (f frame) bounds() (low, high uint32, counted bool) {
	n := uint32(f.count)
	switch f.kind {
	case frameRead:
		return n * readBytes, n * readBytes, true
	case frameData:
		return n, n + chainBytesMax, true
	case frameMessage:
		return 0, MessageMax, false
	case frameGranted:
		return grantedBytes, grantedBytes, false
	case frameVerbs:
		return verbsBytes, verbsBytes, false
	}
	return 0, 0, false
}

func appendRemote(b []byte, r Remote) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.Key)
	b = binary.LittleEndian.AppendUint64(b, r.Offset)
	return binary.LittleEndian.AppendUint32(b, r.Length)
}

func parseRemote(b []byte) Remote {
	return Remote{
		Key:    binary.LittleEndian.Uint64(b),
		Offset: binary.LittleEndian.Uint64(b[8:]),
		Length: binary.LittleEndian.Uint32(b[16:]),
	}
}
