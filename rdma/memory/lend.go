package memory

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Lend makes a buffer over bytes that do not belong to the pool, such as another process's shared memory. They are
// read in place, by a copy that survives their removal. They must stay mapped until the buffer is freed and no reader
// is left (Withdraw). The buffer also holds a small slot, for its key. Errors are those of Alloc.
func (p *Pool) Lend(lent []byte) (*Buffer, error) {
	if len(lent) > BufferMax {
		return nil, fmt.Errorf("%w: %d bytes lent; allowed are 1 to %d", ErrTooLarge, len(lent), BufferMax)
	}

	b, err := p.Alloc(1)
	if err != nil {
		return nil, err
	}
	b.data, b.kind = lent, lentKey
	return b, nil
}

// CopyShared copies from or to memory that another process may truncate meanwhile. It returns false if pages of it
// are gone, which would otherwise crash this process. The rest of a page in which the file ends reads as zeros: a
// caller who must know checks the file's size afterwards.
func CopyShared(dst, src []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}

		// Only the memory fault is expected here.
		if _, is := fault.(runtime.Error); !is {
			panic(fault)
		}
		ok = false
	}()
	copy(dst, src)
	return true
}
