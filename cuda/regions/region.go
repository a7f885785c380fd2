package regions

import (
	"fmt"

	"downbeat.dev/cuda"
)

// Region is a part of another process's device memory.
type Region struct {
	device *cuda.Device
	block  *cuda.Shared
	size   int64
}

// ReadAt fills dst from an offset of the region. It implements io.ReaderAt.
func (r *Region) ReadAt(dst []byte, at int64) (int, error) {
	return r.copyPieces(dst, at, func(w *way, piece []byte, from cuda.Address) error {
		host := w.slab.Bytes()[:len(piece)]
		w.commands.CopyOut(w.stream, host, from)
		err := w.runCommands(r.device)
		if err == nil {
			copy(piece, host)
		}
		return err
	})
}

// WriteAt writes src to an offset of the region. It implements io.WriterAt.
func (r *Region) WriteAt(src []byte, at int64) (int, error) {
	return r.copyPieces(src, at, func(w *way, piece []byte, to cuda.Address) error {
		host := w.slab.Bytes()[:copy(w.slab.Bytes(), piece)]
		w.commands.CopyIn(w.stream, to, host)
		return w.runCommands(r.device)
	})
}

// copyPieces calls move for each piece of mem, with its address in the region.
func (r *Region) copyPieces(mem []byte, at int64, move func(w *way, piece []byte, on cuda.Address) error) (n int, err error) {
	if at < 0 || at > r.size-int64(len(mem)) {
		return 0, fmt.Errorf("bytes %d to %d: the region has %d bytes", at, at+int64(len(mem)), r.size)
	}
	if len(mem) == 0 {
		return 0, nil
	}

	w, err := openWay(r.device, min(len(mem), pieceMax))
	if err != nil {
		return 0, err
	}

	for n < len(mem) {
		piece := mem[n:min(n+pieceMax, len(mem))]

		// After an error the device may still move bytes, so this way is not used again.
		if err := move(w, piece, r.block.Address()+cuda.Address(at)+cuda.Address(n)); err != nil {
			return n, err
		}
		n += len(piece)
	}

	w.freeWay()
	return n, nil
}

// Close releases the memory. It implements io.Closer.
func (r *Region) Close() error {
	r.block.Free()
	return nil
}
