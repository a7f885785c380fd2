package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"downbeat.dev/core/model"
)

func TestTruncatedFramesAreRefused(t *testing.T) {
	for _, s := range samples(t) {
		f := frameOf(t, s.bytes)
		for n := range f.Body {
			if _, err := s.decode(Frame{Type: f.Type, Count: f.Count, Version: f.Version, Body: f.Body[:n]}); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: %d of %d bytes: %v, want %v", s.name, n, len(f.Body), err, ErrMalformed)
			}
		}
		longer := append(bytes.Clone(f.Body), 0)
		if _, err := s.decode(Frame{Type: f.Type, Count: f.Count, Body: longer}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: a trailing byte: %v", s.name, err)
		}
		if _, err := s.decode(Frame{Type: f.Type%(typeEnd-1) + 1, Count: f.Count, Body: f.Body}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: another type's frame: %v", s.name, err)
		}
	}
}

func TestHeaderLimits(t *testing.T) {
	ok := AppendCancels(nil, []Cancel{{ID: 1}})
	for _, c := range []struct {
		name   string
		change func([]byte)
		want   error
		text   string
	}{
		{"version", func(b []byte) { b[5] = Version + 1 }, ErrVersion, fmt.Sprint("version ", Version+1)},
		{"type 0", func(b []byte) { b[4] = 0 }, ErrMalformed, "unknown type 0"},
		{"type 200", func(b []byte) { b[4] = 200 }, ErrMalformed, "unknown type 200"},
		{"length", func(b []byte) { b[3] = 0xff }, ErrLimit, "at most 16777216"},
		{"count 0", func(b []byte) { b[6] = 0 }, ErrMalformed, "0 messages"},
		{"count", func(b []byte) { b[7] = 0xff }, ErrMalformed, "cannot hold"},
	} {
		b := bytes.Clone(ok)
		c.change(b)
		_, err := NewReader(bytes.NewReader(b)).Next()
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.want, c.text)
		}
	}
}

func TestReaderSplitsAndEnds(t *testing.T) {
	var stream []byte
	all := samples(t)
	for _, s := range all {
		stream = append(stream, s.bytes...)
	}
	for name, src := range map[string]io.Reader{"whole": bytes.NewReader(stream), "bytewise": iotest.OneByteReader(bytes.NewReader(stream))} {
		r := NewReader(src)
		for _, s := range all {
			if _, _, err := r.Peek(HelloPeekBytes); err != nil {
				t.Fatalf("%s %s: peek: %v", name, s.name, err)
			}
			f, err := r.Next()
			if err != nil {
				t.Fatalf("%s %s: %v", name, s.name, err)
			}
			if got, err := s.decode(f); err != nil || !reflect.DeepEqual(normal(got), normal(s.want)) {
				t.Fatalf("%s %s: %v %+v", name, s.name, err, got)
			}
		}
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("%s: the end: %v", name, err)
		}
	}
	if _, err := NewReader(bytes.NewReader(stream[:len(stream)-1])).Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewReader(bytes.NewReader(stream[:11])).Next(); err != io.ErrUnexpectedEOF {
		t.Errorf("cut stream: %v", err)
	}
}

// TestReaderGoesOnAfterALargeFrame shows that the memory of a hello with thousands of models is freed, and that the
// next frame is read into new memory.
func TestReaderGoesOnAfterALargeFrame(t *testing.T) {
	hello := BackendHello{Version: Version, Name: "b", GPUs: []string{"g"}}
	for i := range ModelsMax {
		hello.Models = append(hello.Models, BackendModel{Info: model.Info{Name: fmt.Sprint(strings.Repeat("m", 200), i), Version: "1"}, Profile: make([]time.Duration, 16)})
	}
	stream, err := AppendBackendHello(nil, &hello)
	if err != nil {
		t.Fatal(err)
	}
	if len(stream) < readerBytesKeep {
		t.Fatalf("the hello has %d bytes, no more than is kept anyway", len(stream))
	}
	for stamp := range int64(3) {
		stream = AppendPing(stream, Ping{Stamp: stamp})
	}
	for name, source := range map[string]io.Reader{"whole": bytes.NewReader(stream), "in halves": iotest.HalfReader(bytes.NewReader(stream))} {
		r := NewReader(source)
		if f, err := r.Next(); err != nil || f.Type != TypeBackendHello {
			t.Fatalf("%s: %v, %v", name, f.Type, err)
		}
		for stamp := range int64(3) {
			f, err := r.Next()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if m, err := DecodePing(f); err != nil || m.Stamp != stamp {
				t.Errorf("%s: %+v, %v; want stamp %d", name, m, err, stamp)
			}
		}
		if _, err := r.Next(); err != io.EOF || len(r.buf) > readerBytesKeep {
			t.Errorf("%s: at the end %v, %d bytes kept", name, err, len(r.buf))
		}
	}
}

// TestLargeLengthDoesNotAllocate sends a header that promises 16 MiB and then nothing.
func TestLargeLengthDoesNotAllocate(t *testing.T) {
	b := AppendSubmits(nil, []Submit{{ID: 1}})
	b[3], b[6], b[7] = 1, 1, 0 // 16 MiB and some
	le.PutUint32(b, FrameBytesMax)
	r := NewReader(bytes.NewReader(b))
	if _, err := r.Next(); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	if len(r.buf) > readerBytes*2 {
		t.Errorf("the reader holds %d bytes for a frame of which %d came", len(r.buf), len(b))
	}
}
