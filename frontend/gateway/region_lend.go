package gateway

import "downbeat.dev/frontend"

// lendMin is the least size of a row, in bytes, that backends read in place. Copying a shorter row takes less time
// than lending it.
const lendMin = 8 << 10

// lendRow lends the next row of n bytes directly from the client's region. It returns nil if the row must be copied:
// if its bytes come from several tensors, the gateway reads them, some backend runs in another process, or they lie
// in device memory.
func (in *inference) lendRow(client *frontend.Client, n int) *frontend.Buffer {
	t, m := &in.inputs[0], in.model
	if n < lendMin || len(in.inputs) > 1 || t.place.of == nil || t.place.of.device != nil || m.Sequence != nil || m.HasShapes() || m.Platform == platformApplication || in.canary != nil {
		return nil
	}

	b, ok := client.Lend(t.place.of.bytesAt(t.place.offset+int64(in.room.at[0]), int64(n)))
	if !ok {
		return nil
	}
	in.lent = true
	return b
}

// checkLent checks that the object still has the rows that were read from it; otherwise some of the bytes read were
// zeros, or nothing was read.
func (in *inference) checkLent() *fault {
	if !in.lent {
		return nil
	}
	p := &in.inputs[0].place
	if err := p.of.checkSize(p.offset, p.offset+p.size); err != nil {
		return faultOf(err)
	}
	return nil
}
