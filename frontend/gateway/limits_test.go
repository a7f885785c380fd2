package gateway

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"downbeat.dev/internal/memcost"
)

// repeatField returns a message with times copies of one length-delimited field.
func repeatField(num protowire.Number, body []byte, times int) []byte {
	one := protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), body)
	return bytes.Repeat(one, times)
}

// TestDecodingStopsAtTheLimits: a message of empty tensors compresses to almost nothing and must not expand to
// gigabytes, so decoding stops at the limit.
func TestDecodingStopsAtTheLimits(t *testing.T) {
	packedShape := repeatField(3, bytes.Repeat([]byte{1}, 1<<20), 1)
	looseShape := bytes.Repeat([]byte{3 << 3, 1}, 1<<20)
	for _, c := range []struct {
		name, field string
		msg         []byte
	}{
		{"inputs", "inputs: ", repeatField(5, nil, 1<<20)},
		{"outputs", "outputs: ", repeatField(6, nil, 1<<20)},
		{"raw contents", "raw_input_contents: ", repeatField(7, nil, 1<<20)},
		{"packed shape", "shape: ", repeatField(5, packedShape, 1)},
		{"loose shape", "shape: ", repeatField(5, looseShape, 1)},
	} {
		m := new(inferMessage)
		var err error
		took := memcost.Allocated(func() { err = m.decodeMessage(c.msg) })
		if !errors.Is(err, errLimit) || !strings.HasPrefix(err.Error(), c.field) {
			t.Errorf("%s: %v", c.name, err)
		}
		if took > 256<<10 {
			t.Errorf("%s: %d bytes of memory for a refused message", c.name, took)
		}
	}
}

// TestLargeCallsAreNotKept shows that arrays that grew for a large call are not kept for small calls.
func TestLargeCallsAreNotKept(t *testing.T) {
	for _, c := range []struct {
		name  string
		grow  func(*inference)
		large bool
	}{
		{"one row", func(in *inference) { in.room.calls = sizedZero(in.room.calls, 1) }, false},
		{"1,024 rows", func(in *inference) { in.room.calls = sizedZero(in.room.calls, rowsMax) }, true},
		{"256 inputs", func(in *inference) { in.inputs = sizedZero(in.inputs, tensorsMax) }, true},
		{"256 outputs", func(in *inference) { in.outputs = sizedZero(in.outputs, tensorsMax) }, true},
	} {
		in := new(inference)
		c.grow(in)
		in.resetCall()
		if in.isLarge() != c.large {
			t.Errorf("%s: large: %v", c.name, in.isLarge())
		}
	}
}
