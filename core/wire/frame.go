package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Type is the type of a frame's messages.
type Type uint8

// The frame types. Numbers are part of the protocol.
const (
	TypeFrontendHello Type = 1 + iota
	TypeBackendHello
	TypeWelcome
	TypeRefusal
	TypeSubmit
	TypeCancel
	TypeOutcome
	TypeModels
	TypePeers
	TypeExecute
	TypeDone
	TypePing
	TypePong
	TypeLead
	TypeFollow
	TypeStandbyHello
	TypeLearned
	TypePlacement
	TypePlacementReport
	TypeLoadable
	TypeModelCommand
	TypeModelAnswer
	TypeUnserved
	TypeSpareOffer
	TypeSpareStart
	TypeSpareEnd
	TypePlanRecord
	TypeEarlySubmit // submits of which some have a ReadyIn; since version 10
	typeEnd
)

var typeNames = [typeEnd]string{
	"", "frontend hello", "backend hello", "welcome", "refusal", "submit", "cancel", "outcome",
	"models", "peers", "execute", "done", "ping", "pong",
	"lead", "follow", "standby hello", "learned",
	"placement", "placement report", "loadable",
	"model command", "model answer", "unserved models",
	"spare offer", "spare start", "spare end", "plan record", "early submit",
}

// String returns the type's name for errors.
func (t Type) String() string {
	if t > 0 && t < typeEnd {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Limits on the memory that a peer may claim. An encoder never exceeds them; a decoder refuses larger values before
// it allocates.
const (
	HeaderBytes    = 8
	FrameBytesMax  = 16 << 20 // one frame's body
	MessagesMax    = 1<<16 - 1
	NameBytesMax   = 256  // names, versions, datatypes, platforms, sub-clusters
	TokenBytesMax  = 256  //
	AddrBytesMax   = 4096 // a data plane address
	TextBytesMax   = 1024 // a refusal's sentence
	TensorsMax     = 64   // inputs, and outputs, of a model
	RankMax        = 16   // dimensions of a tensor
	ProfileMax     = 4096 // batch sizes in a profile, and requests in a batch
	GPUsMax        = 1024 // of one backend
	ModelsMax      = 4096 // of one backend
	frameBytesSoft = 1 << 20
)

// Errors of decoding, wrapped with the frame type and the cause.
var (
	ErrMalformed = errors.New("malformed frame")
	ErrLimit     = errors.New("over the protocol's limit")
	ErrVersion   = errors.New("protocol version mismatch")
)

// sizeMin is the least size of one message of each type.
var sizeMin = [typeEnd]int{
	TypeFrontendHello: 12, TypeBackendHello: 12, TypeWelcome: welcomeBytes, TypeRefusal: 3,
	TypeSubmit: submitBytes, TypeCancel: cancelBytes, TypeOutcome: outcomeBytes,
	TypeModels: modelBytesMin, TypePeers: peerBytesMin, TypeExecute: executeBytes, TypeDone: doneBytes,
	TypePing: pingBytes, TypePong: pongBytes,
	TypeLead: leadBytes, TypeFollow: followBytes, TypeStandbyHello: 6, TypeLearned: learnedBytesMin,
	TypePlacement: placementBytes, TypePlacementReport: placementReportBytesMin, TypeLoadable: loadableBytesMin,
	TypeModelCommand: commandBytesMin, TypeModelAnswer: answerBytesMin, TypeUnserved: unservedBytesMin,
	TypeSpareOffer: spareOfferBytesMin, TypeSpareStart: spareStartBytes, TypeSpareEnd: spareEndBytes,
	TypePlanRecord: planRecordBytesMin, TypeEarlySubmit: earlySubmitBytes,
}

// Frame is a decoded header and the bytes that follow it: Count messages of one type.
type Frame struct {
	Type    Type
	Count   int
	Body    []byte
	Version uint8 // from the peer's header
}

// The header: u32 body length, u8 type, u8 version, u16 count.
func putHeader(b []byte, t Type, count int) {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-HeaderBytes))
	b[4], b[5] = byte(t), Version
	binary.LittleEndian.PutUint16(b[6:], uint16(count))
}

// ParseHeader reads a header and checks it against the protocol's limits, so that the caller may wait for length
// bytes.
func ParseHeader(b []byte) (t Type, count, length int, err error) {
	if len(b) < HeaderBytes {
		return 0, 0, 0, fmt.Errorf("%w: header of %d bytes, %d needed", ErrMalformed, len(b), HeaderBytes)
	}

	n := binary.LittleEndian.Uint32(b)
	t, count = Type(b[4]), int(binary.LittleEndian.Uint16(b[6:]))

	if b[5] < VersionMin || b[5] > Version {
		return t, 0, 0, fmt.Errorf("%w: the peer speaks version %d, this is version %d and knows %d", ErrVersion, b[5], Version, VersionMin)
	}

	if t == 0 || t >= typeEnd {
		return t, 0, 0, fmt.Errorf("%w: unknown %v (1 to %d are known)", ErrMalformed, t, uint8(typeEnd)-1)
	}

	if n > FrameBytesMax {
		return t, 0, 0, fmt.Errorf("%w: %v frame of %d bytes, at most %d", ErrLimit, t, n, FrameBytesMax)
	}

	// Every message takes some bytes. A larger count would make decoders allocate for nothing.
	if count == 0 || count*sizeMin[t] > int(n) {
		return t, 0, 0, fmt.Errorf("%w: %v frame of %d bytes cannot hold its %d messages", ErrMalformed, t, n, count)
	}
	return t, count, int(n), nil
}

// Reader splits a byte stream into frames. Its one buffer grows only as bytes arrive. One goroutine owns it.
type Reader struct {
	src    io.Reader
	buf    []byte
	lo, hi int // unread bytes are buf[lo:hi]
}

const (
	readerBytes     = 64 << 10
	readerBytesKeep = 1 << 20 // a larger buffer is dropped after the frame that needed it
)

// NewReader returns a Reader on src.
func NewReader(src io.Reader) *Reader { return &Reader{src: src, buf: make([]byte, 4<<10)} }

// Next returns the next frame. Its body is valid until the next call. It returns io.EOF at a clean end, and
// io.ErrUnexpectedEOF within a frame.
func (r *Reader) Next() (Frame, error) {
	if err := r.fillBuffer(HeaderBytes); err != nil {
		return Frame{}, err
	}

	t, count, length, err := ParseHeader(r.buf[r.lo:r.hi])
	if err != nil {
		return Frame{}, err
	}

	if err := r.fillBuffer(HeaderBytes + length); err != nil {
		return Frame{}, unexpected(err)
	}

	// The body's capacity is limited, so that appending to it cannot overwrite the next frame.
	f := Frame{Type: t, Count: count, Version: r.buf[r.lo+5], Body: r.buf[r.lo+HeaderBytes : r.lo+HeaderBytes+length : r.lo+HeaderBytes+length]}
	r.lo += HeaderBytes + length
	return f, nil
}

// Peek returns the next frame's type and at most n bytes of its body without consuming them, so that the token can be
// checked before a large hello is read.
func (r *Reader) Peek(n int) (Type, []byte, error) {
	if err := r.fillBuffer(HeaderBytes); err != nil {
		return 0, nil, err
	}

	t, _, length, err := ParseHeader(r.buf[r.lo:r.hi])
	if err != nil {
		return t, nil, err
	}

	// The hello may be shorter than n.
	n = min(n, length)
	if err := r.fillBuffer(HeaderBytes + n); err != nil {
		return t, nil, unexpected(err)
	}
	return t, r.buf[r.lo+HeaderBytes : r.lo+HeaderBytes+n], nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fillBuffer makes at least n unread bytes available.
func (r *Reader) fillBuffer(n int) error {
	// One read usually brings many small frames, so most calls end here.
	if r.hi-r.lo >= n {
		return nil
	}

	// After a large frame the buffer goes back to its usual size.
	if r.lo == r.hi && len(r.buf) > readerBytesKeep {
		r.buf, r.lo, r.hi = make([]byte, readerBytes), 0, 0
	}

	// Unread bytes move to the front, so that the whole frame is contiguous.
	if r.lo > 0 {
		r.hi = copy(r.buf, r.buf[r.lo:r.hi])
		r.lo = 0
	}

	for empty := 0; r.hi < n; {
		// The buffer doubles only when it is full of received bytes: a header alone reserves nothing.
		if r.hi == len(r.buf) {
			r.buf = append(r.buf, make([]byte, max(readerBytes, len(r.buf)))...)
		}

		got, err := r.src.Read(r.buf[r.hi:])
		r.hi += got
		if r.hi >= n {
			return nil
		}

		if err != nil {
			if errors.Is(err, io.EOF) && r.hi > 0 {
				return io.ErrUnexpectedEOF
			}
			return err
		}

		// A source may sometimes return nothing, but not for ever.
		if got > 0 {
			empty = 0
		} else if empty++; empty > 100 {
			return io.ErrNoProgress
		}
	}
	return nil
}
