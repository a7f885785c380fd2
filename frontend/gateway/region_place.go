package gateway

import (
	"strconv"
	"strings"

	"downbeat.dev/core/model"
)

// place is the position of a tensor in a client's region, from its parameters.
type place struct {
	name         string
	offset, size int64
	named, sized bool
	of           *region // set by find; the call releases it
}

// setParameter sets a parameter whose value is a number.
func (p *place) setParameter(parameter string, value int64) *fault {
	switch parameter {
	case "shared_memory_offset":
		p.offset = value
	case "shared_memory_byte_size":
		p.size, p.sized = value, true
	default:
		return invalidFault("parameter %.40s: no such parameter: must be shared_memory_region, shared_memory_offset or shared_memory_byte_size", parameter)
	}
	if value < 0 {
		return invalidFault("parameter %s: %d: must be 0 or more", parameter, value)
	}
	return nil
}

// findRegion looks up the region of a tensor; what names the tensor in errors.
func (p *place) findRegion(s *regions, what string) *fault {
	if p.named != p.sized {
		return invalidFault("%s: shared_memory_region and shared_memory_byte_size: one is missing: both must be given", what)
	}
	r, f := s.takeRegion(p.name)
	if f != nil {
		return f
	}

	// Subtract, because the sum of a client's two numbers may overflow.
	if p.size > r.size || p.offset > r.size-p.size {
		r.releaseRegion()
		return invalidFault("%s: shared_memory_offset %d and shared_memory_byte_size %d: region %q has %d bytes", what, p.offset, p.size, p.name, r.size)
	}
	p.of = r
	return nil
}

// findInput finds the region of an input, if the input names one. Texts are read at once, because their lengths are
// needed; other elements stay there until a row is copied to registered memory.
func (in *inference) findInput(t *input) *fault {
	if !t.place.named && !t.place.sized {
		return nil
	}
	if t.given {
		return invalidFault("input %q: has data besides shared_memory_region: give one", t.name)
	}
	if f := in.findRegion(&t.place, "input", t.name); f != nil {
		return f
	}

	t.given = true
	if t.datatype != model.Bytes {
		return nil
	}

	if f := in.takeBytes(t.place.size); f != nil {
		return f
	}
	t.raw = make([]byte, t.place.size)
	if err := t.place.of.readAt(t.raw, t.place.offset); err != nil {
		return faultOf(err)
	}
	t.place.of = nil // raw has the elements now
	return nil
}

// findOutput finds the region of an output, if the output names one, and checks that it will fit.
func (in *inference) findOutput(o *output, t *model.Tensor) *fault {
	if !o.place.named && !o.place.sized {
		return nil
	}
	if f := in.findRegion(&o.place, "output", o.name); f != nil {
		return f
	}

	o.binary = false // its bytes are not in the answer

	// The size of classes and texts is known only with the result: placeOutputs checks it then.
	if need := int64(t.RowBytes()) * int64(in.rows); o.classes == 0 && need > o.place.size {
		return tooSmall(o, need)
	}
	return nil
}

func tooSmall(o *output, need int64) *fault {
	return invalidFault("shared memory size specified with the request for output '%s' (%d bytes) should be at least %d bytes to hold the results", o.name, o.place.size, need)
}

// findRegion finds the region of a tensor and keeps it until the call ends.
func (in *inference) findRegion(p *place, what, name string) *fault {
	if f := p.findRegion(in.regions, what+" "+strconv.Quote(name)); f != nil {
		return f
	}
	in.room.regions = append(in.room.regions, p.of)
	return nil
}

// placeOutputs moves outputs to the regions that they name.
func (a *answer) placeOutputs(in *inference) *fault {
	for i := range in.outputs {
		o := &in.outputs[i]
		if o.place.of == nil {
			continue
		}
		if need := int64(len(a.raw[i])); need > o.place.size {
			return tooSmall(o, need)
		}

		if err := o.place.of.writeAt(a.raw[i], o.place.offset); err != nil {
			return faultOf(err)
		}
		o.place.size = int64(len(a.raw[i])) // the size that the answer reports
		a.raw[i] = nil
	}
	return nil
}

// isMemoryParameter reports whether a tensor's parameter places it in shared memory.
func isMemoryParameter(name string) bool { return strings.HasPrefix(name, "shared_memory_") }

// parseJSON sets such a parameter from a JSON request.
func (p *place) parseJSON(s *jsonScanner, name string) *fault {
	if name == "shared_memory_region" {
		p.name, p.named = s.readString(), true
		return nil
	}
	return p.setParameter(name, s.readInteger())
}

// decodeGRPC sets such a parameter from a gRPC request.
func (p *place) decodeGRPC(name string, value parameter) *fault {
	if name == "shared_memory_region" {
		if value.num != 3 {
			return invalidFault("parameter %s: must be a string_param", name)
		}
		p.name, p.named = viewText(value.text), true
		return nil
	}

	n, ok := value.wholeNumber()
	if !ok {
		return invalidFault("parameter %s: must be an int64_param", name)
	}
	return p.setParameter(name, n)
}

// appendParameters appends the parameters of an output that lies in a region.
func (p *place) appendParameters(b []byte) []byte {
	b = append(b, `,"parameters":{"shared_memory_region":`...)
	b = appendQuoted(b, []byte(p.name))
	if p.offset != 0 {
		b = append(b, `,"shared_memory_offset":`...)
		b = strconv.AppendInt(b, p.offset, 10)
	}
	b = append(b, `,"shared_memory_byte_size":`...)
	b = strconv.AppendInt(b, p.size, 10)
	return append(b, '}')
}
