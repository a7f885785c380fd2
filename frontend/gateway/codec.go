package gateway

import (
	"fmt"
	"math"
	"strconv"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"downbeat.dev/frontend/gateway/oip"
)

// leanCodec decodes inference requests without copying tensors and encodes their responses in one
// pass; every other message goes through grpc's own codec. The bytes on the wire are the same.
type leanCodec struct {
	proto   encoding.CodecV2
	gateway *Gateway
}

func newLeanCodec(g *Gateway) leanCodec { return leanCodec{encoding.GetCodecV2("proto"), g} }

func (leanCodec) Name() string { return "proto" }

// otherMax bounds messages other than inferences, which hold a few names. The generated decoder allocates an object
// for every two bytes of some of them.
const otherMax = 64 << 10

// Unmarshal implements encoding.CodecV2.
func (c leanCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*inferMessage)
	if !ok {
		_, brings := v.(*oip.RepositoryModelLoadRequest) // a model's files; BodyMax bounds them

		// gRPC bounds messages by BodyMax, which is sized for tensors and far too large for names.
		if n := data.Len(); n > otherMax && !brings {
			return fmt.Errorf("message of %d bytes: must be at most %d", n, otherMax)
		}
		return c.proto.Unmarshal(data, v)
	}

	// A message in one piece stays in gRPC's buffer; several pieces are copied together once.
	m.buf = data.MaterializeToBuffer(&c.gateway.memory)
	if err := m.decodeMessage(m.buf.ReadOnlyData()); err != nil {
		m.fault = invalidFault("request: %v", err) // gRPC would turn an error returned here into an internal one
	}
	return nil
}

// Marshal implements encoding.CodecV2.
func (c leanCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch r := v.(type) {
	case *inferReply:
		return c.marshalReply(r, r.measure(), r.append)
	case streamReply:
		return c.marshalReply(r.inferReply, r.measure(), r.append)
	}
	return c.proto.Marshal(v)
}

// marshalReply encodes a reply of a known size, and releases it.
func (c leanCodec) marshalReply(r *inferReply, size int, appendTo func([]byte) []byte) (mem.BufferSlice, error) {
	defer r.releaseReply()

	// gRPC pools no buffer this small, so it would never call Put.
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.BufferSlice{mem.SliceBuffer(appendTo(make([]byte, 0, size)))}, nil
	}

	pool := &sentReply{gateway: c.gateway}
	if r.call != nil {
		pool.abort = r.call.hangUp
	}

	b := pool.Get(size)
	out := appendTo((*b)[:0])

	// If the reply outgrew the buffer, out lies elsewhere, but gRPC sends b.
	if len(out) != size {
		return nil, fmt.Errorf("response of %d bytes was measured as %d", len(out), size)
	}
	return mem.BufferSlice{mem.NewBuffer(b, pool)}, nil
}

// sentReply is the pool of one reply's buffer: the reply stays listed until the client has read it.
type sentReply struct {
	transfer
	gateway *Gateway
}

// Get implements mem.BufferPool.
func (p *sentReply) Get(n int) *[]byte {
	b := p.gateway.memory.Get(n)

	// Without a connection there is nothing to close, so nothing needs to be listed.
	if p.abort != nil {
		p.gateway.replies.addTransfer(&p.transfer)
	}
	return b
}

// Put implements mem.BufferPool.
func (p *sentReply) Put(b *[]byte) {
	p.gateway.replies.removeTransfer(&p.transfer)
	p.gateway.memory.Put(b)
}

// eachField calls each for every field of an encoded message. n is the value of a varint or a fixed field, b the
// bytes of a length-delimited one.
func eachField(msg []byte, each func(num protowire.Number, typ protowire.Type, n uint64, b []byte) error) error {
	for len(msg) > 0 {
		num, typ, k := protowire.ConsumeTag(msg)

		// A negative length is the decoder's error code.
		if k < 0 {
			return protowire.ParseError(k)
		}
		msg = msg[k:]

		var n uint64
		var b []byte
		switch typ {
		case protowire.VarintType:
			n, k = protowire.ConsumeVarint(msg)
		case protowire.Fixed64Type:
			n, k = protowire.ConsumeFixed64(msg)
		case protowire.Fixed32Type:
			var n32 uint32
			n32, k = protowire.ConsumeFixed32(msg)
			n = uint64(n32)
		case protowire.BytesType:
			b, k = protowire.ConsumeBytes(msg)
		default:
			// Skip groups, like any field that a reader does not know.
			k = protowire.ConsumeFieldValue(num, typ, msg)
		}

		if k < 0 {
			return protowire.ParseError(k)
		}
		msg = msg[k:]

		if err := each(num, typ, n, b); err != nil {
			return err
		}
	}
	return nil
}

// parameter is a decoded InferParameter; num says which of its choices is set.
type parameter struct {
	num  protowire.Number
	n    uint64
	text []byte // of a string_param; in the call's buffer
}

// String returns the parameter as JSON text.
func (p parameter) String() string {
	// The numbers are those of InferParameter's choices.
	switch p.num {
	case 1:
		return strconv.FormatBool(p.n != 0)
	case 2:
		return strconv.FormatInt(int64(p.n), 10)
	case 3:
		return strconv.Quote(string(p.text))
	case 4:
		return strconv.FormatFloat(math.Float64frombits(p.n), 'g', -1, 64)
	}
	return strconv.FormatUint(p.n, 10)
}

// wholeNumber returns the parameter as a whole number. A uint64 above the largest int64 saturates: no limit is that
// large.
func (p parameter) wholeNumber() (int64, bool) {
	switch p.num {
	case 2:
		return int64(p.n), true
	case 5:
		return int64(min(p.n, math.MaxInt64)), true
	}
	return 0, false
}

// number returns the parameter as a number.
func (p parameter) number() (float64, bool) {
	if p.num == 4 {
		return math.Float64frombits(p.n), true
	}
	n, ok := p.wholeNumber()
	return float64(n), ok
}

// decodeParameter decodes an entry of a map of parameters.
func decodeParameter(entry []byte) (name string, p parameter, err error) {
	err = eachField(entry, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		// An entry of a map is a message: its key is field 1 and its value field 2.
		switch {
		case num == 1 && typ == protowire.BytesType:
			name = viewText(b)
		case num == 2 && typ == protowire.BytesType:
			return eachField(b, func(num protowire.Number, _ protowire.Type, n uint64, text []byte) error {
				p = parameter{num, n, text}
				return nil
			})
		}
		return nil
	})
	return name, p, err
}
