package device

import (
	"encoding/binary"
	"fmt"

	"downbeat.dev/core/model"
)

// Models with a BYTES tensor have payloads of varying size. A row's inputs are one packed tensor, and so are its
// outputs: a little-endian length of 4 bytes and the payload, in room for the elements that the model's configuration
// allows (bytes_max). A length larger than the room marks a row that has no output.

const (
	lengthBytes = 4
	noOutput    = ^uint32(0)
)

// packRow returns the tensor that holds a whole row of at most size bytes, and that size.
func packRow(size int) ([]Tensor, int) {
	return []Tensor{{Tensor: model.Tensor{Name: "packed", Datatype: model.Bytes, Shape: []int64{1}}, Bytes: lengthBytes + size}}, size
}

// Takes reports whether a payload of n bytes can be a row's inputs.
func (d *Model) Takes(n int) bool {
	if d.Varies {
		return n >= d.inLeast && n <= d.InBytes
	}
	return n == d.InBytes
}

// SetPacked gives a packed row a payload of n bytes, and returns the payload's memory.
func SetPacked(row []byte, n int) ([]byte, error) {
	// The length comes from a client or a graph, so check it before using memory.
	if n > len(row)-lengthBytes {
		return nil, fmt.Errorf("payload of %d bytes: must be at most %d", n, len(row)-lengthBytes)
	}
	binary.LittleEndian.PutUint32(row, uint32(n))
	return row[lengthBytes:][:n:n], nil
}

// SetNoOutput marks a packed row.
func SetNoOutput(row []byte) { binary.LittleEndian.PutUint32(row, noOutput) }

// Packed returns a packed row's payload; false if the row is marked or its length is invalid.
func Packed(row []byte) ([]byte, bool) {
	// The mark noOutput is larger than any room, so the same comparison finds it.
	n := uint64(binary.LittleEndian.Uint32(row))
	if n > uint64(len(row)-lengthBytes) {
		return nil, false
	}
	return row[lengthBytes:][:n:n], true
}
