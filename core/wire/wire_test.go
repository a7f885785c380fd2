package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"downbeat.dev/core/model"
)

func TestRoundTrip(t *testing.T) {
	seen := map[Type]bool{}
	for _, s := range samples(t) {
		f := frameOf(t, s.bytes)
		seen[f.Type] = true
		got, err := s.decode(f)
		if err != nil {
			t.Errorf("%s: %v", s.name, err)
		} else if !reflect.DeepEqual(normal(got), normal(s.want)) {
			t.Errorf("%s:\n got %+v\nwant %+v", s.name, got, s.want)
		}
	}
	if len(seen) != int(typeEnd)-1 {
		t.Errorf("samples cover %d of %d types", len(seen), typeEnd-1)
	}
}

// TestGolden pins the bytes: a change here is a new protocol version. WIRE_REWRITE=1 rewrites them.
func TestGolden(t *testing.T) {
	const path = "testdata/golden.txt"
	var b strings.Builder
	for _, s := range samples(t) {
		b.WriteString(s.name + " " + hex.EncodeToString(s.bytes) + "\n")
	}
	b.WriteString("result " + hex.EncodeToString(ResultHeader{ID: 1 << 40, Reason: 9, Output: 3, Exec: 77}.Append(nil)) + "\n")
	b.WriteString("result_with_stages " + hex.EncodeToString(ResultHeader{ID: 7, Exec: 5, Staged: true, Stages: Stages{1, 2, 3}}.Append(nil)) + "\n")
	if os.Getenv("WIRE_REWRITE") != "" {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the encoding changed:\n%s", b.String())
	}
}

func TestLargeArraysSplit(t *testing.T) {
	many := make([]Submit, 3*MessagesMax)
	for i := range many {
		many[i].ID = uint64(i)
	}
	r := NewReader(bytes.NewReader(AppendSubmits(nil, many)))
	next := uint64(0)
	var got []Submit
	for next < uint64(len(many)) {
		f, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got, err = DecodeSubmits(got, f); err != nil {
			t.Fatal(err)
		}
		for _, s := range got {
			if s.ID != next {
				t.Fatalf("got %d, want %d", s.ID, next)
			}
			next++
		}
	}
}

func TestEncoderRefusesWhatIsOverTheLimits(t *testing.T) {
	long := strings.Repeat("x", NameBytesMax+1)
	for name, h := range map[string]BackendHello{
		"name":    {Name: long},
		"gpus":    {GPUs: make([]string, GPUsMax+1)},
		"models":  {Models: make([]BackendModel, ModelsMax+1)},
		"profile": {Models: []BackendModel{{Profile: make([]time.Duration, ProfileMax+1)}}},
		"tensors": {Models: []BackendModel{{Info: model.Info{Inputs: make([]model.Tensor, TensorsMax+1)}}}},
		"rank":    {Models: []BackendModel{{Info: model.Info{Inputs: []model.Tensor{{Shape: make([]int64, RankMax+1)}}}}}},
		"utf8":    {Name: "\xff"},
	} {
		want := ErrLimit
		if name == "utf8" {
			want = ErrMalformed
		}
		if _, err := AppendBackendHello([]byte("keep"), &h); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

func TestResultHeader(t *testing.T) {
	for _, h := range []ResultHeader{
		{ID: 3, Output: 4, Exec: 99, Reason: 7, Answer: 1<<24 - 1},
		{ID: 3, Output: 4, Exec: 99, Reason: 7, Answer: 1<<24 - 1, Staged: true, Stages: Stages{Fetch: 5, Wait: StageOf(-1), Reply: StageOf(1 << 40)}},
	} {
		msg := append(h.Append(nil), "abcd"...)
		got, out, err := DecodeResult(msg)
		if err != nil || got != h || string(out) != "abcd" {
			t.Fatal(got, out, err)
		}
		for name, bad := range map[string][]byte{"short": msg[:20], "cut": msg[:27], "without output": msg[:len(msg)-4], "long": append(bytes.Clone(msg), 1)} {
			if _, _, err := DecodeResult(bad); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestNoAllocation shows that the request path allocates nothing after warm-up.
func TestNoAllocation(t *testing.T) {
	submits := make([]Submit, 64)
	executes := []Execute{{Items: make([]Item, 32)}, {Items: make([]Item, 8)}}
	dones := []Done{{Failures: make([]ItemFailure, 2)}, {}}
	outcomes, cancels := make([]Outcome, 16), make([]Cancel, 4)
	var buf []byte
	var s2 []Submit
	var e2 []Execute
	var d2 []Done
	var o2 []Outcome
	var c2 []Cancel
	src := bytes.NewReader(nil)
	r := NewReader(src)
	turn := func() {
		buf = AppendSubmits(buf[:0], submits)
		buf = AppendExecutes(buf, executes)
		buf = AppendDones(buf, dones)
		buf = AppendOutcomes(buf, outcomes)
		buf = AppendCancels(buf, cancels)
		buf = AppendPing(buf, Ping{1})
		buf = AppendPong(buf, Pong{1, 2})
		buf = ResultHeader{ID: 1}.Append(buf)
		src.Reset(buf)
		for range 7 {
			f, err := r.Next()
			switch f.Type {
			case TypeSubmit:
				s2, err = DecodeSubmits(s2, f)
			case TypeExecute:
				e2, err = DecodeExecutes(e2, f)
			case TypeDone:
				d2, err = DecodeDones(d2, f)
			case TypeOutcome:
				o2, err = DecodeOutcomes(o2, f)
			case TypeCancel:
				c2, err = DecodeCancels(c2, f)
			case TypePing:
				_, err = DecodePing(f)
			case TypePong:
				_, err = DecodePong(f)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		r.lo = r.hi // the result header belongs to the data plane
	}
	turn()
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations per turn", n)
	}
}

func BenchmarkSubmit64(b *testing.B) {
	m := make([]Submit, 64)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendSubmits(buf[:0], m)
		m, _ = DecodeSubmits(m, Frame{Type: TypeSubmit, Count: 64, Body: buf[HeaderBytes:]})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/msg")
}

// TestNoTextKeepsAnErrorBack: an error may quote anything and be of any length. Its message arrives all the same, since
// the receiver waits for it.
func TestNoTextKeepsAnErrorBack(t *testing.T) {
	for _, text := range []string{"node \xff\xfe", "x" + strings.Repeat("ℓ", TextBytesMax), strings.Repeat("x", TextBytesMax-1) + "ℓ", strings.Repeat("\xff", TextBytesMax)} {
		got := map[string]string{}
		b, err := AppendModelAnswers(nil, []ModelAnswer{{Number: 1, Code: CommandFailed, Text: text}})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := DecodeModelAnswers(frameOf(t, b)); err != nil || len(m) != 1 {
			t.Error(err)
		} else {
			got["answer"] = m[0].Text
		}

		if b, err = AppendPlacementReports(nil, []PlacementReport{{State: LoadFailed, Text: text}}); err != nil {
			t.Fatal(err)
		}
		if m, err := DecodePlacementReports(frameOf(t, b)); err != nil || len(m) != 1 {
			t.Error(err)
		} else {
			got["report"] = m[0].Text
		}

		b = AppendRefusal(nil, Refusal{Text: text})
		if len(b) == 0 {
			t.Fatalf("no refusal for %.20q", text)
		}
		if m, err := DecodeRefusal(frameOf(t, b)); err != nil {
			t.Error(err)
		} else {
			got["refusal"] = m.Text
		}

		for what, g := range got {
			if !utf8.ValidString(g) || len(g) > TextBytesMax || !strings.HasPrefix(g, strings.ToValidUTF8(text, "\uFFFD")[:3]) {
				t.Errorf("%s of %.20q: %.40q, %d bytes", what, text, g, len(g))
			}
		}
	}
}

// TestSpareOffersAreChecked shows that an invalid weight or step ends the session that sent it.
func TestSpareOffersAreChecked(t *testing.T) {
	for _, o := range []SpareOffer{{Step: -1, Weight: 1}, {Step: 1}, {Step: 1, Weight: -1}, {Step: 1, Weight: math.NaN()}, {Step: 1, Weight: math.Inf(1)}} {
		b, err := AppendSpareOffers(nil, []SpareOffer{o})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeSpareOffers(frameOf(t, b)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%+v was read as %+v, %v", o, got, err)
		}
	}
}

// TestAccuraciesAreChecked shows that an accuracy outside 0 to 1 ends the session that sent it.
func TestAccuraciesAreChecked(t *testing.T) {
	for _, accuracy := range []float64{-0.1, 1.01, math.NaN(), math.Inf(1)} {
		b, err := AppendBackendHello(nil, &BackendHello{Version: Version, Name: "b", Models: []BackendModel{{Info: model.Info{ID: 1, Name: "v-s", Family: "v", Accuracy: accuracy}, Profile: []time.Duration{1e6}}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeBackendHello(frameOf(t, b)); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "0 to 1") {
			t.Errorf("an accuracy of %v: error %v, want one that names what is allowed", accuracy, err)
		}
	}
}
