package memory

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Lend makes a buffer of bytes that are not the pool's, such as another process's shared memory: they are read where
// they lie, by a copy that survives their going. They must stay mapped until the buffer is freed and nobody reads it any
// more (Withdraw). The buffer holds a small slot besides, for its key. It ends as Alloc does.
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

// CopyShared copies from or to memory that another process may take away meanwhile. It reports false where pages of it
// are gone, which would else end this process. The rest of a page whose file ends in it is zeros: who must know asks for the
// file's size afterwards.
func CopyShared(dst, src []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}

		// Only the fault itself is expected here.
		if _, is := fault.(runtime.Error); !is {
			panic(fault)
		}
		ok = false
	}()
	copy(dst, src)
	return true
}
