package onnx

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"downbeat.dev/internal/memcost"
)

// FuzzUnmarshalCost shows that decoding and checking a model file takes no more memory than its bytes allow.
func FuzzUnmarshalCost(f *testing.F) {
	const fixed = 256 << 10
	f.Add(sample(f).Marshal())
	f.Add([]byte("no model"))

	// A graph with many empty parts of each kind.
	for field := protowire.Number(1); field <= 16; field++ {
		part := protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), nil)
		graph := bytes.Repeat(part, 1<<12)
		f.Add(protowire.AppendBytes(protowire.AppendTag(nil, 7, protowire.BytesType), graph))
		f.Add(graph)
		nested := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), graph)
		f.Add(protowire.AppendBytes(protowire.AppendTag(nil, 7, protowire.BytesType), nested))
	}

	f.Fuzz(func(t *testing.T, b []byte) {
		memcost.Check(t, b, fixed, func() {
			if m, err := Unmarshal(b); err == nil {
				_ = m.Graph.Check()
			}
		})
	})
}
