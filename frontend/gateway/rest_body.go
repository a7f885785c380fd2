package gateway

import (
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"

	"google.golang.org/grpc/codes"
)

// scratch is the buffer for a REST call's body or answer.
type scratch struct {
	b      []byte
	writer answerWriter
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// scratchMax is the largest buffer that the pool keeps.
const scratchMax = 4 << 20

func (s *scratch) putBack() {
	s.writer = answerWriter{}
	if cap(s.b) <= scratchMax {
		s.b = s.b[:0]
		scratches.Put(s)
	}
}

// readBody reads a body and decompresses it if needed. The call counts its memory.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, in *inference, body *scratch) *fault {
	// Refuse a length that is too large before reading any byte.
	limit := g.o.BodyMax
	if r.ContentLength > limit {
		return tooLarge("body: %d bytes: must be at most %d", r.ContentLength, limit)
	}

	// A declared length bounds the body: the server reads no further. Otherwise BodyMax bounds it.
	var from io.Reader = r.Body
	if r.ContentLength < 0 {
		from = http.MaxBytesReader(w, r.Body, limit)
	}
	most := int(limit) + 1
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		if r.ContentLength >= 0 {
			// With room for one more byte, the read finds the end without growing the buffer.
			most = int(r.ContentLength) + 1
		}
	case "gzip", "deflate":
		unpacked, err := unpackFrom(from, encoding)
		if err != nil {
			return invalidFault("body: Content-Encoding %s: %v", encoding, err)
		}
		defer unpacked.Close()

		// So far only the compressed bytes are bounded, and they may expand without limit.
		from = io.LimitReader(unpacked, limit+1)
	default:
		return refusalFault(http.StatusUnsupportedMediaType, codes.InvalidArgument, "invalid_argument", "header Content-Encoding: "+strconv.Quote(encoding)+": must be gzip, deflate or identity")
	}

	if err := in.readAll(from, body, most); err != nil {
		return bodyFault(err, limit)
	}

	if int64(len(body.b)) > limit {
		return tooLarge("body: unpacks to more than %d bytes, the limit", limit)
	}
	return nil
}

func unpackFrom(from io.Reader, encoding string) (io.ReadCloser, error) {
	if encoding == "gzip" {
		return gzip.NewReader(from)
	}
	return zlib.NewReader(from)
}

func bodyFault(err error, limit int64) *fault {
	var large *http.MaxBytesError
	var f *fault
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &large):
		return tooLarge("body: larger than %d bytes, the limit", limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refusalFault(http.StatusRequestTimeout, codes.DeadlineExceeded, "slow_body", "body: did not arrive in time")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return invalidFault("body: ends before its Content-Length")
	}
	return invalidFault("body: %v", err)
}

// readAll is io.ReadAll into a reused buffer, which grows up to most as bytes arrive.
func (in *inference) readAll(from io.Reader, body *scratch, most int) error {
	b := body.b[:0]
	defer func() { body.b = b }()
	if f := in.takeBytes(int64(cap(b))); f != nil {
		return f
	}

	for {
		if len(b) == cap(b) {
			// Both buffers count while one is copied to the other.
			size := max(min(max(bodyGrowth*cap(b), bodyStart), most), cap(b)+1)
			if f := in.takeBytes(int64(size)); f != nil {
				return f
			}
			outgrown := cap(b)
			b = append(make([]byte, 0, size), b...)
			in.giveBytes(int64(outgrown))
		}

		n, err := from.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// bodyStart is a body's first memory, and bodyGrowth the largest ratio of its memory to the bytes that have arrived:
// a declared length alone takes no memory.
const (
	bodyStart  = 64 << 10
	bodyGrowth = 4
)
