package wire

import (
	"fmt"

	"downbeat.dev/core/model"
)

const (
	executeBytes = 36 // batch, gpu, model, start, latest, item count
	itemBytes    = 16 + descriptorBytes
	doneBytes    = 48 // batch, gpu, fetch, wait, exec, free in, failure count
	failureBytes = 5
	// The model's index takes the low bits of its field, as a backend has at most ModelsMax models; Answer takes the
	// other bits. A peer of an earlier version gets no Answer, so its bytes are unchanged.
	answerShift = 12
)

// AppendExecutes appends frames carrying m. No batch may have more than ProfileMax items.
func AppendExecutes(dst []byte, m []Execute) []byte {
	for len(m) > 0 {
		at, n := len(dst), 0
		dst = growBytes(dst, HeaderBytes)

		// A frame stays near a megabyte, because a reader needs all of it before its first batch starts.
		for n < len(m) && n < MessagesMax && (n == 0 || len(dst)-at < frameBytesSoft) {
			dst = appendExecute(dst, &m[n])
			n++
		}
		putHeader(dst[at:], TypeExecute, n)
		m = m[n:]
	}
	return dst
}

func appendExecute(dst []byte, m *Execute) []byte {
	// The engine forms no larger batch, so this is our mistake and not a peer's input.
	if len(m.Items) > ProfileMax {
		panic(fmt.Sprintf("wire: a batch of %d requests, at most %d", len(m.Items), ProfileMax))
	}

	at := len(dst)
	dst = growBytes(dst, executeBytes+len(m.Items)*itemBytes)
	b := dst[at:]

	le.PutUint64(b, m.Batch)
	le.PutUint32(b[8:], m.GPU)
	le.PutUint32(b[12:], m.Model|m.Answer<<answerShift)
	le.PutUint64(b[16:], uint64(m.Start))
	le.PutUint64(b[24:], uint64(m.Latest))
	le.PutUint32(b[32:], uint32(len(m.Items)))

	// The items follow the head in one run: a slice of exact size spares each field its bounds check.
	b = b[executeBytes:]
	for i := range m.Items {
		putItem(b[:itemBytes:itemBytes], &m.Items[i])
		b = b[itemBytes:]
	}
	return dst
}

func putItem(b []byte, m *Item) {
	// One bounds check here saves one per field.
	_ = b[itemBytes-1]
	le.PutUint64(b, m.ID)
	le.PutUint32(b[8:], m.Frontend)
	le.PutUint32(b[12:], m.Budget)
	putDescriptor(b[16:], &m.Input)
}

// DecodeExecutes decodes f, using dst's memory and that of the items within its capacity.
func DecodeExecutes(dst []Execute, f Frame) ([]Execute, error) {
	if err := checkType(f, TypeExecute); err != nil {
		return dst[:0], err
	}

	dst = resize(dst, f.Count)
	b := f.Body
	for i := range dst {
		// The position of the next batch follows from the number of items of this one.
		n, err := decodeExecute(b, &dst[i])
		if err != nil {
			return dst[:0], fmt.Errorf("execute %d: %w", i, err)
		}
		b = b[n:]
	}
	return dst, checkEnd(b, f.Type)
}

func decodeExecute(b []byte, m *Execute) (int, error) {
	if len(b) < executeBytes {
		return 0, fmt.Errorf("%w: %d bytes left, %d needed", ErrMalformed, len(b), executeBytes)
	}

	m.Batch, m.GPU = le.Uint64(b), le.Uint32(b[8:])
	m.Model, m.Answer = le.Uint32(b[12:])&(1<<answerShift-1), le.Uint32(b[12:])>>answerShift
	m.Start, m.Latest = int64(le.Uint64(b[16:])), int64(le.Uint64(b[24:]))

	n := le.Uint32(b[32:])
	b = b[executeBytes:]

	// The count comes from a peer: allocate only for items whose bytes have arrived.
	if n > ProfileMax {
		return 0, fmt.Errorf("%w: %d items, at most %d", ErrLimit, n, ProfileMax)
	}
	if len(b) < int(n)*itemBytes {
		return 0, fmt.Errorf("%w: %d items do not fit into %d bytes", ErrMalformed, n, len(b))
	}

	m.Items = resize(m.Items, int(n))
	for i := range m.Items {
		getItem(b[:itemBytes:itemBytes], &m.Items[i])
		b = b[itemBytes:]
	}
	return executeBytes + int(n)*itemBytes, nil
}

func getItem(b []byte, m *Item) {
	_ = b[itemBytes-1]
	m.ID, m.Frontend, m.Budget = le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:])
	getDescriptor(b[16:], &m.Input)
}

// AppendDones appends frames carrying m.
func AppendDones(dst []byte, m []Done) []byte {
	for len(m) > 0 {
		at, n := len(dst), 0
		dst = growBytes(dst, HeaderBytes)

		for n < len(m) && n < MessagesMax && (n == 0 || len(dst)-at < frameBytesSoft) {
			dst = appendDone(dst, &m[n])
			n++
		}
		putHeader(dst[at:], TypeDone, n)
		m = m[n:]
	}
	return dst
}

// failureUntold is the bit of a failure's reason that means Untold.
const failureUntold = 1 << 7

func appendDone(dst []byte, m *Done) []byte {
	// A batch has at most one failure for each of its requests.
	if len(m.Failures) > ProfileMax {
		panic(fmt.Sprintf("wire: a batch with %d failures, at most %d", len(m.Failures), ProfileMax))
	}

	at := len(dst)
	dst = growBytes(dst, doneBytes+len(m.Failures)*failureBytes)
	b := dst[at:]

	le.PutUint64(b, m.Batch)
	le.PutUint32(b[8:], m.GPU)
	le.PutUint64(b[12:], uint64(m.Fetch))
	le.PutUint64(b[20:], uint64(m.Wait))
	le.PutUint64(b[28:], uint64(m.Exec))
	le.PutUint64(b[36:], uint64(m.FreeIn))
	le.PutUint32(b[44:], uint32(len(m.Failures)))

	b = b[doneBytes:]
	for _, f := range m.Failures {
		le.PutUint32(b, f.Index)
		b[4] = byte(f.Reason)
		// Reasons are below 128, so their byte has a free bit.
		if f.Untold {
			b[4] |= failureUntold
		}
		b = b[failureBytes:]
	}
	return dst
}

// DecodeDones decodes f, using dst's memory and that of the failures within its capacity.
func DecodeDones(dst []Done, f Frame) ([]Done, error) {
	if err := checkType(f, TypeDone); err != nil {
		return dst[:0], err
	}

	dst = resize(dst, f.Count)
	b := f.Body
	for i := range dst {
		n, err := decodeDone(b, &dst[i])
		if err != nil {
			return dst[:0], fmt.Errorf("done %d: %w", i, err)
		}
		b = b[n:]
	}
	return dst, checkEnd(b, f.Type)
}

func decodeDone(b []byte, m *Done) (int, error) {
	if len(b) < doneBytes {
		return 0, fmt.Errorf("%w: %d bytes left, %d needed", ErrMalformed, len(b), doneBytes)
	}

	m.Batch, m.GPU = le.Uint64(b), le.Uint32(b[8:])
	m.Fetch, m.Wait = int64(le.Uint64(b[12:])), int64(le.Uint64(b[20:]))
	m.Exec, m.FreeIn = int64(le.Uint64(b[28:])), int64(le.Uint64(b[36:]))

	n := le.Uint32(b[44:])
	b = b[doneBytes:]

	if n > ProfileMax {
		return 0, fmt.Errorf("%w: %d failures, at most %d", ErrLimit, n, ProfileMax)
	}
	if len(b) < int(n)*failureBytes {
		return 0, fmt.Errorf("%w: %d failures do not fit into %d bytes", ErrMalformed, n, len(b))
	}

	m.Failures = resize(m.Failures, int(n))
	for i := range m.Failures {
		m.Failures[i] = ItemFailure{Index: le.Uint32(b), Reason: model.Reason(b[4] &^ failureUntold), Untold: b[4]&failureUntold != 0}
		b = b[failureBytes:]
	}
	return doneBytes + int(n)*failureBytes, nil
}

func checkEnd(rest []byte, t Type) error {
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes after the last %v message", ErrMalformed, len(rest), t)
	}
	return nil
}
