package stream

import (
	"encoding/binary"
	"fmt"

	"downbeat.dev/rdma/memory"
)

// Version of the handshake and the frames. A peer with another version is refused.
const Version = 3

// Limits for both ends.
const (
	ChainMax      = 1024     // reads of one chain
	MessageMax    = 64 << 20 // bytes of one message
	ChainBytesMax = 1 << 30  // bytes that one chain reads
	ChainsMax     = 1024     // chains under way to one peer
	ReadsMax      = 1 << 16  // reads of one peer whose bytes it has not received yet
	QueueMax      = 128 << 20
	OwnedMax      = 2 * QueueMax // bytes of answers and messages copied for one peer: ReadsMax reads of CopyMax bytes, and QueueMax of messages
)

// Kind is the kind of a frame.
type Kind uint8

// Frames of the byte-stream protocol, little-endian. Every frame is a header of 16 bytes and a body.
const (
	KindRead    Kind = 1 + iota // count × {key u64, offset u64, length u32}
	KindData                    // count status bytes, then the bytes of every read with status 0
	KindMessage                 // the message
	KindEcho                    // empty; id is the sender's stamp
	KindEchoed                  // empty; id as in the echo
	KindSegment                 // empty; id is a live key: asks for direct access to its segment
	KindGranted                 // Granted; over a Unix socket with a descriptor
	KindVerbs                   // Setup
	KindTaken                   // empty; id is the number of an announced message
	kindsEnd
)

const (
	HeaderBytes  = 16
	RemoteBytes  = 20
	GrantedBytes = 32
	SetupBytes   = 96
)

// Frame is the header: body u32, kind u8, flags u8 (zero), count u16, id u64.
type Frame struct {
	Body  uint32 // number of bytes that follow
	Kind  Kind
	Count uint16 // number of reads that it requests or answers
	ID    uint64
}

// Append encodes the header.
func (f Frame) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, f.Body)
	b = append(b, byte(f.Kind), 0)
	b = binary.LittleEndian.AppendUint16(b, f.Count)
	return binary.LittleEndian.AppendUint64(b, f.ID)
}

// ParseFrame decodes a header and checks every length in it against its limit.
func ParseFrame(b []byte) (Frame, error) {
	f := Frame{
		Body:  binary.LittleEndian.Uint32(b),
		Kind:  Kind(b[4]),
		Count: binary.LittleEndian.Uint16(b[6:]),
		ID:    binary.LittleEndian.Uint64(b[8:]),
	}

	if f.Kind == 0 || f.Kind >= kindsEnd || b[5] != 0 {
		return f, fmt.Errorf("%w: frame kind %d, flags %d", memory.ErrProtocol, b[4], b[5])
	}

	// Later allocations use these lengths, so a header outside its kind's bounds ends the connection here.
	low, high, counted := f.bodyBounds()
	if f.Body < low || f.Body > high || (f.Count != 0) != counted || f.Count > ChainMax {
		return f, fmt.Errorf("%w: frame kind %d with %d bytes and count %d; %d to %d bytes allowed",
			memory.ErrProtocol, f.Kind, f.Body, f.Count, low, high)
	}
	return f, nil
}

// bodyBounds returns the body's allowed length and whether the frame carries a count.
func (f Frame) bodyBounds() (low, high uint32, counted bool) {
	n := uint32(f.Count)
	switch f.Kind {
	case KindRead:
		return n * RemoteBytes, n * RemoteBytes, true
	case KindData:
		return n, n + ChainBytesMax, true
	case KindMessage:
		return 0, MessageMax, false
	case KindGranted:
		return GrantedBytes, GrantedBytes, false
	case KindVerbs:
		return SetupBytes, SetupBytes, false
	}
	return 0, 0, false
}

// AppendRemote encodes RemoteBytes bytes.
func AppendRemote(b []byte, r memory.Remote) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.Key)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Offset))
	return binary.LittleEndian.AppendUint32(b, r.Length)
}

// ParseRemote decodes what AppendRemote encodes.
func ParseRemote(b []byte) memory.Remote {
	return memory.Remote{
		Key:    binary.LittleEndian.Uint64(b),
		Offset: memory.NarrowOffset(binary.LittleEndian.Uint64(b[8:])),
		Length: binary.LittleEndian.Uint32(b[16:]),
	}
}
