package gateway

import "downbeat.dev/frontend"

// lendMin is the size of a row in bytes from which it is read where it lies. Shorter ones are copied in less time than that takes.
const lendMin = 8 << 10

// lendRow has the next row of n bytes read from the client's region itself. It returns nil if the row must be copied: where its bytes are more than
// one tensor's, or the gateway looks at them, or some backend is in another process, or they lie in device memory.
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

// checkLent tells whether the object that rows were read from has them still: else some of what was read were zeros, or nothing was.
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
