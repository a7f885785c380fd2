package device

import (
	"encoding/binary"
	"fmt"

	"downbeat.dev/core/wire"
)

// Models with a BYTES tensor have payloads of varying size. A row's inputs lie in one packed tensor,
// and so do its outputs: a little-endian length of 4 bytes and the payload, in room for packedMax
// bytes of elements. A length that does not fit the room marks a row that has no output.

// packedMax is the room for all BYTES elements of a row's inputs, and of its outputs.
const packedMax = 64 << 10

const (
	lengthBytes = 4
	noOutput    = ^uint32(0)
)

func varies(ts []wire.Tensor) bool {
	for _, t := range ts {
		if t.Datatype == "BYTES" {
			return true
		}
	}
	return false
}

// pack returns the tensor that holds all of a row's, of which fixed bytes do not vary.
func pack(fixed int) ([]Tensor, int) {
	size := fixed + packedMax
	return []Tensor{{Tensor: wire.Tensor{Name: "packed", Datatype: "BYTES", Shape: []int64{1}}, Bytes: lengthBytes + size}}, size
}

// Takes reports whether a payload of n bytes can be a row's inputs.
func (d *Model) Takes(n int) bool {
	if d.Varies {
		return n > 0 && n <= d.InBytes
	}
	return n == d.InBytes
}

// SetPacked gives a packed row a payload of n bytes, and returns where it lies.
func SetPacked(row []byte, n int) ([]byte, error) {
	if n > len(row)-lengthBytes {
		return nil, fmt.Errorf("payload of %d bytes: must be at most %d", n, len(row)-lengthBytes)
	}
	binary.LittleEndian.PutUint32(row, uint32(n))
	return row[lengthBytes:][:n:n], nil
}

// SetNoOutput marks a packed row.
func SetNoOutput(row []byte) { binary.LittleEndian.PutUint32(row, noOutput) }

// Packed returns a packed row's payload; false if it is marked, or its length makes no sense.
func Packed(row []byte) ([]byte, bool) {
	n := uint64(binary.LittleEndian.Uint32(row))
	if n > uint64(len(row)-lengthBytes) {
		return nil, false
	}
	return row[lengthBytes:][:n:n], true
}
