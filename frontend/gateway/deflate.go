package gateway

import (
	"compress/zlib"
	"io"
	"sync"

	"google.golang.org/grpc/encoding"
)

// deflate is gRPC's "deflate" encoding: the zlib format (RFC 1950), which HTTP also calls deflate. grpc-go has only
// gzip, and Triton's clients offer both.
type deflate struct{ writers, readers sync.Pool }

func init() { encoding.RegisterCompressor(new(deflate)) }

// Name is the encoding's name on the wire.
func (*deflate) Name() string { return "deflate" }

// Compress returns a writer whose Close ends the message and returns the writer to the pool.
func (d *deflate) Compress(w io.Writer) (io.WriteCloser, error) {
	// A zlib writer allocates hundreds of KiB, so writers are pooled.
	z, _ := d.writers.Get().(*zlib.Writer)
	if z == nil {
		z = zlib.NewWriter(w)
	} else {
		z.Reset(w)
	}
	return &deflateWriter{z, d}, nil
}

type deflateWriter struct {
	*zlib.Writer
	of *deflate
}

// Close ends the message.
func (w *deflateWriter) Close() error {
	err := w.Writer.Close()
	w.of.writers.Put(w.Writer)
	return err
}

// Decompress returns a reader whose Close puts it back into the pool. grpc bounds the bytes that it reads.
func (d *deflate) Decompress(r io.Reader) (io.Reader, error) {
	if z, _ := d.readers.Get().(io.ReadCloser); z != nil {
		if err := z.(zlib.Resetter).Reset(r, nil); err != nil {
			// A bad header leaves the reader usable.
			d.readers.Put(z)
			return nil, err
		}
		return &deflateReader{z, d}, nil
	}
	z, err := zlib.NewReader(r)
	if err != nil {
		return nil, err
	}
	return &deflateReader{z, d}, nil
}

type deflateReader struct {
	io.ReadCloser
	of *deflate
}

// Close returns the reader to the pool; grpc calls it once, when it has the message or gives up.
func (r *deflateReader) Close() error {
	// Another call may now use the reader, so drop the reference to it.
	z := r.ReadCloser
	r.ReadCloser = nil
	if z == nil {
		return nil
	}
	err := z.Close()
	r.of.readers.Put(z)
	return err
}
