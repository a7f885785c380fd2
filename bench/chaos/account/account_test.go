package account

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/model"
)

// The test alone looks at the product: what the accountant expects is what an emulated GPU answers.
func TestExpectedIsWhatAnEmulatedGPUAnswers(t *testing.T) {
	for _, size := range []int{64, 100, 4096, 65536} {
		m := &device.Model{Inputs: []device.Tensor{{Bytes: size, Tensor: model.Tensor{Datatype: "UINT8"}}}, Outputs: []device.Tensor{{Bytes: OutputBytes, Tensor: model.Tensor{Datatype: "FP32"}}}, OutBytes: OutputBytes}
		for id := range uint64(50) {
			in := make([]byte, size)
			Input(id<<40|7, in)
			if got, want := Expected(id<<40|7, size), emu.Pattern(m, in); !bytes.Equal(got, want) {
				t.Fatalf("id %d, %d bytes: %v, the GPU answers %v", id, size, got, want)
			}
		}
	}
}

func TestRecordsPassWhole(t *testing.T) {
	var pipe bytes.Buffer
	w := NewWriter(&pipe)
	sent := []Record{{Kind: Sent, ID: 1 << 60, At: 5, Until: 9, Size: 64, Text: []byte{}}, {Kind: Output, ID: 1 << 60, At: 8, Text: []byte("output")}}
	for _, r := range sent {
		w.Write(r)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	pipe.Write([]byte{'S', 1, 2})
	r := bufio.NewReader(&pipe)
	for _, want := range sent {
		got, err := Read(r)
		if err != nil || got.Kind != want.Kind || got.ID != want.ID || got.At != want.At || got.Until != want.Until || !bytes.Equal(got.Text, want.Text) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := Read(r); !errors.Is(err, io.EOF) {
		t.Errorf("half a record: %v, want EOF", err)
	}
}

// Each way to be wrong is found.
func TestLedgerFindsWhatIsWrong(t *testing.T) {
	const size, ms = 64, int64(time.Millisecond)
	l := NewLedger()
	sent := func(caller int, id uint64, at int64) {
		l.Note(caller, Record{Kind: Sent, ID: id, At: at * ms, Until: (at + 100) * ms, Size: size})
	}
	end := func(caller int, id uint64, at int64, output []byte) {
		l.Note(caller, Record{Kind: Output, ID: id, At: at * ms, Text: output})
	}
	sent(1, 10, 0)
	end(1, 10, 50, Expected(10, size))
	sent(1, 11, 1)
	end(1, 11, 50, Expected(10, size)) // another request's
	sent(1, 12, 2)
	end(1, 12, 302, Expected(12, size)) // 200 ms late
	sent(1, 13, 3)                      // never ended
	sent(2, 14, 3)                      // ended with its caller
	l.Killed(2)
	sent(1, 15, 4)
	end(1, 15, 5, Expected(15, size))
	end(1, 15, 6, Expected(15, size)) // twice
	end(1, 99, 6, nil)                // never sent
	sent(1, 16, 5)
	l.Note(1, Record{Kind: Ended, ID: 16, At: 7 * ms, Text: []byte("no_backend")})

	s := l.Sum()
	if s.Sent != 7 || s.Good != 1 || s.Wrong != 1 || s.Unaccounted != 3 || s.WithCaller != 1 || s.Reasons["no_backend"] != 1 || s.Reasons["late"] != 1 || s.LateMax != 200*time.Millisecond {
		t.Errorf("%+v", s)
	}
	if got := l.Between(1, 0, 6*ms); got != (Share{Good: 2, Sent: 6}) { // the one that ended twice was good
		t.Errorf("%+v", got)
	}
}

func TestRecovery(t *testing.T) {
	l := NewLedger()
	for i := range uint64(100) {
		l.Note(1, Record{Kind: Sent, ID: i, At: int64(i) * 10, Until: 1 << 40, Size: 64})
		if i >= 30 && i < 50 {
			l.Note(1, Record{Kind: Ended, ID: i, At: 5, Text: []byte("no_backend")})
		} else {
			l.Note(1, Record{Kind: Output, ID: i, At: 5, Text: Expected(i, 64)})
		}
	}
	if d, ok := l.Recovery(1, 295); !ok || d != 205 {
		t.Errorf("%v, %v, want 205ns", d, ok)
	}
	if d, ok := l.Recovery(1, 600); !ok || d != 0 {
		t.Errorf("%v, %v, want none", d, ok)
	}
	if _, ok := l.Recovery(1, 950); ok {
		t.Error("five requests are no recovery")
	}
}
