package wire

import (
	"fmt"

	"downbeat.dev/core/model"
)

const (
	composedHeadBytes = 12
	releaseBytes      = 16
	composedMark      = 0x70_6d_6f_63 // "comp": recognises a table, so that other bytes are refused
	releaseMark       = 0x65_65_72_66 // "free"

	// PartsMax bounds the inputs of a composed request, and the outputs that a backend is asked to hold.
	PartsMax = 32
)

// Composed is the table at the start of a composed input (model.Composed): it locates each of the model's inputs.
//
// Layout, little-endian: u32 mark, u16 parts, u16 lease in units of 16 ms, u32 outputs to hold, and a descriptor for
// each part.
type Composed struct {
	// Parts are the model's inputs, in order. A descriptor without a node has key 0: its offset counts from the start
	// of the frontend's buffer.
	Parts []model.Descriptor
	// Hold has a bit for each output that the backend should keep and offer instead of sending it, if it can.
	Hold uint32
	// Lease is how long the backend holds outputs, in ms; at most a little over 17 minutes, and backends grant less.
	Lease uint32
}

// leaseUnit is the unit of a lease, in ms.
const leaseUnit = 16

// ComposedBytes is the size of a table.
func ComposedBytes(parts int) int { return composedHeadBytes + parts*descriptorBytes }

// Append appends the table. More than PartsMax parts are an error of the caller.
func (c *Composed) Append(dst []byte) []byte {
	if len(c.Parts) > PartsMax {
		panic(fmt.Sprintf("wire: a composed input of %d parts, at most %d", len(c.Parts), PartsMax))
	}
	dst = le.AppendUint32(dst, composedMark)
	dst = le.AppendUint16(dst, uint16(len(c.Parts)))
	dst = le.AppendUint16(dst, uint16(min((c.Lease+leaseUnit-1)/leaseUnit, 1<<16-1)))
	dst = le.AppendUint32(dst, c.Hold)
	return AppendDescriptors(dst, c.Parts)
}

// DecodeComposed reads a table with the given number of parts, reusing c.Parts's memory.
func (c *Composed) DecodeComposed(b []byte, parts int) error {
	if len(b) != ComposedBytes(parts) || le.Uint32(b) != composedMark {
		return fmt.Errorf("%w: no table of a composed input of %d parts", ErrMalformed, parts)
	}
	if n := int(le.Uint16(b[4:])); n != parts {
		return fmt.Errorf("%w: a composed input of %d parts: the model has %d inputs", ErrMalformed, n, parts)
	}
	c.Lease, c.Hold = uint32(le.Uint16(b[6:]))*leaseUnit, le.Uint32(b[8:])

	c.Parts = resize(c.Parts, parts)
	for i := range c.Parts {
		getDescriptor(b[composedHeadBytes+i*descriptorBytes:], &c.Parts[i])
	}
	return nil
}

// AppendDescriptors appends descriptors, 16 bytes each.
func AppendDescriptors(dst []byte, all []model.Descriptor) []byte {
	for i := range all {
		at := len(dst)
		dst = growBytes(dst, descriptorBytes)
		putDescriptor(dst[at:], &all[i])
	}
	return dst
}

// DecodeHeld splits the body of a result that has held outputs: a descriptor for each of the model's outputs,
// followed by the outputs whose key is 0.
func DecodeHeld(body []byte, outputs int) ([]model.Descriptor, []byte, error) {
	if outputs > PartsMax || len(body) < outputs*descriptorBytes {
		return nil, nil, fmt.Errorf("%w: a held result of %d bytes for %d outputs, at most %d", ErrMalformed, len(body), outputs, PartsMax)
	}
	all := make([]model.Descriptor, outputs)
	for i := range all {
		getDescriptor(body[i*descriptorBytes:], &all[i])
	}
	return all, body[outputs*descriptorBytes:], nil
}

// Release tells the backend that nobody reads a row's held outputs any more. Frontend → backend, on the data plane.
//
// Layout, little-endian: u32 mark, u32 offset, u64 key.
type Release struct {
	Key    uint64 // of the row's first held output
	Offset uint32 // likewise, as its node knows it
}

// Append appends the message.
func (r Release) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, releaseMark)
	dst = le.AppendUint32(dst, r.Offset)
	return le.AppendUint64(dst, r.Key)
}

// DecodeRelease reads a message that a frontend sent to a backend.
func DecodeRelease(msg []byte) (Release, error) {
	if len(msg) != releaseBytes || le.Uint32(msg) != releaseMark {
		return Release{}, fmt.Errorf("%w: a message of %d bytes that is no release", ErrMalformed, len(msg))
	}
	return Release{Offset: le.Uint32(msg[4:]), Key: le.Uint64(msg[8:])}, nil
}
