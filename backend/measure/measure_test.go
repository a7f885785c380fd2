package measure

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/cuda"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func emulatedModel(t *testing.T, batchMax int, alpha, beta time.Duration) *device.Model {
	return devicetest.Emulated(t, "m", batchMax, alpha, beta, []model.Tensor{{Name: "x", Datatype: "FP32", Shape: []int64{8}}},
		[]model.Tensor{{Name: "y", Datatype: "FP32", Shape: []int64{2}}})
}

// open returns an emulated GPU with m loaded on a slot.
func open(t *testing.T, m *device.Model) (*emu.Executor, *device.Slot) {
	t.Helper()
	e, err := emu.New()
	if err != nil {
		t.Fatal(err)
	}
	slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	return e, slots[0]
}

// TestRun measures an emulated GPU, which is never faster than its profile and hardly slower.
func TestRun(t *testing.T) {
	m := emulatedModel(t, 6, 300*time.Microsecond, time.Millisecond)
	e, slot := open(t, m)
	defer e.Close()
	rounds := 0
	r, err := Run(context.Background(), On(e), m, slot, Options{Rounds: 5, Progress: func(int, int) { rounds++ }})
	if err != nil {
		t.Fatal(err)
	}
	if rounds != 5 || len(r.Sizes) != 6 || len(r.Table) != 6 {
		t.Fatalf("%d rounds, %d sizes, table of %d", rounds, len(r.Sizes), len(r.Table))
	}
	for i, s := range r.Sizes {
		if want := m.Profile.Exec(i + 1); s.Batch != i+1 || s.Samples != 5 || s.P50 < want || r.Table[i] < want {
			t.Errorf("batch size %d: %+v and ℓ = %v, want at least %v", i+1, s, r.Table[i], want)
		}
	}
	if _, err := r.Profile(); err != nil {
		t.Error(err)
	}
	if err := r.Stored("cpu/x/ort-1", "", time.Now()).Check(); err != nil {
		t.Error(err)
	}
}

func TestQuickKeepsItsBudget(t *testing.T) {
	m := emulatedModel(t, 8, 10*time.Millisecond, 0) // 150 ms per sparse round
	e, slot := open(t, m)
	defer e.Close()
	r, err := Quick(context.Background(), On(e), m, slot)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Sizes[0].Samples; n < 1 || n >= quickRounds {
		t.Errorf("%d rounds, want some and not all", n)
	}
	if len(r.Table) != 8 || r.Table[4] < 40*time.Millisecond {
		t.Errorf("table %v: batch size 5 is between 4 and 8", r.Table)
	}
}

func TestRunReportsFailure(t *testing.T) {
	m := emulatedModel(t, 2, time.Millisecond, 0)
	e, slot := open(t, m)
	defer e.Close()
	e.Inject(emu.Failing)
	if _, err := Run(context.Background(), On(e), m, slot, Options{}); !errors.As(err, new(*cuda.Error)) {
		t.Errorf("error %v, want the executor's", err)
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		max    int
		sparse bool
		want   []int
	}{{1, true, []int{1}}, {1, false, []int{1}}, {2, true, []int{1, 2}}, {6, true, []int{1, 2, 4, 6}}, {8, true, []int{1, 2, 4, 8}}, {4, false, []int{1, 2, 3, 4}}} {
		got := batchSizes(c.max, c.sparse)
		if len(got) != len(c.want) {
			t.Fatalf("sizes(%d, %v) = %v, want %v", c.max, c.sparse, got, c.want)
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("sizes(%d, %v) = %v, want %v", c.max, c.sparse, got, c.want)
			}
		}
	}
}

func TestTable(t *testing.T) {
	us := func(n ...int) (d []time.Duration) {
		for _, x := range n {
			d = append(d, time.Duration(x)*time.Microsecond)
		}
		return d
	}
	line := profile.Line{Alpha: 10 * time.Microsecond}
	for name, c := range map[string]struct {
		at   []int
		high []time.Duration
		max  int
		want []time.Duration
	}{
		"interpolates":       {[]int{1, 2, 4, 8}, us(10, 20, 40, 120), 8, us(10, 20, 30, 40, 60, 80, 100, 120)},
		"never decreases":    {[]int{1, 2, 3}, us(10, 30, 20), 3, us(10, 30, 30)},
		"goes on by a slope": {[]int{1, 2}, us(10, 30), 4, us(10, 30, 40, 50)},
		"one size":           {[]int{1}, us(5), 1, us(5)},
	} {
		got := fillTable(c.at, c.high, line, c.max)
		for i := range c.want {
			if len(got) != len(c.want) || got[i] != c.want[i] {
				t.Errorf("%s: %v, want %v", name, got, c.want)
				break
			}
		}
	}
}

func TestIsotonic(t *testing.T) {
	for _, c := range []struct{ in, want []time.Duration }{
		{nil, nil}, {[]time.Duration{5}, []time.Duration{5}}, {[]time.Duration{1, 2, 3}, []time.Duration{1, 2, 3}},
		{[]time.Duration{1, 4, 2, 5}, []time.Duration{1, 3, 3, 5}}, {[]time.Duration{9, 6, 3}, []time.Duration{6, 6, 6}},
		{[]time.Duration{2, 8, 7, 3, 20}, []time.Duration{2, 6, 6, 6, 20}},
	} {
		if got := isotonicFit(c.in); !slices.Equal(got, c.want) {
			t.Errorf("isotonic(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

// TestStallsDoNotCount gives the smallest batch one stall among few samples.
func TestStallsDoNotCount(t *testing.T) {
	samples := [][]time.Duration{{100, 110, 50_000, 105, 120}, {200, 210, 220, 205, 215}}
	r := summarizeSamples([]int{1, 2}, samples, 2)
	if r.Table[0] != 120 || r.Table[1] != 220 || r.Sizes[0].P99 != 50_000 {
		t.Errorf("%+v", r)
	}
}

func TestSummarizeFitsAndPrints(t *testing.T) {
	samples := make([][]time.Duration, 4)
	for i := range samples {
		for k := range 100 {
			d := time.Duration(i+1)*time.Millisecond + 2*time.Millisecond
			if k >= 97 {
				d += time.Second // stalls beyond the percentile
			}
			samples[i] = append(samples[i], d)
		}
	}
	r := summarizeSamples([]int{1, 2, 3, 4}, samples, 4)
	if r.Line.Alpha != time.Millisecond || r.Line.Beta != 2*time.Millisecond || r.Line.R2 < 0.9999 || r.Sizes[2].Residual != 0 {
		t.Errorf("%+v", r)
	}
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"α = 1.000 ms, β = 2.000 ms, R² = 1.0000", "3      100   5.000  1005.000    5.000       1.667       +0.000"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

func TestShortName(t *testing.T) {
	for in, want := range map[string]string{
		" Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz": "Xeon-Platinum-8375C",
		" AMD EPYC 7763 64-Core Processor":               "AMD-EPYC-7763-64-Core",
		"":                                               "amd64",
	} {
		if got := shortName(in); got != want && !(in == "" && got != "") {
			t.Errorf("shortName(%q) = %q, want %q", in, got, want)
		}
	}
	vm := map[string]string{"model name": "Intel(R) Xeon(R) Processor", "cpu family": "6", "model": "143", "stepping": "8"}
	if got := processorName(vm); got != "Xeon-6.143.8" {
		t.Errorf("processorName(%v) = %q", vm, got)
	}
	if k := HostKind("1.27.0", 1); !strings.HasPrefix(k, "cpu/") || !strings.HasSuffix(k, "/ort-1.27.0") || HostKind("1.27.0", 4) != k+"/threads-4" {
		t.Errorf("host kind %q", k)
	}
}

// stopping ends its context in the n-th batch.
type stopping struct {
	device.Executor
	n    int
	stop func()
}

func (s *stopping) Submit(b device.Batch) error {
	if s.n--; s.n == 0 {
		s.stop()
	}
	return s.Executor.Submit(b)
}

// TestMeasuringStopsBetweenBatches shows that no batch runs after the end of the context.
func TestMeasuringStopsBetweenBatches(t *testing.T) {
	m := emulatedModel(t, 4, 10*time.Microsecond, 0)
	e, slot := open(t, m)
	defer e.Close()
	for name, f := range map[string]func(context.Context, device.Executor) error{
		"run": func(ctx context.Context, e device.Executor) error {
			_, err := Run(ctx, On(e), m, slot, Options{})
			return err
		},
		"check": func(ctx context.Context, e device.Executor) error {
			p, err := profile.Linear(10*time.Microsecond, time.Microsecond, 4)
			if err == nil {
				_, err = Check(ctx, On(e), m, slot, p, 1)
			}
			return err
		},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		s := &stopping{Executor: e, n: 3, stop: cancel}
		if err := f(ctx, s); !errors.Is(err, context.Canceled) || s.n != 0 {
			t.Errorf("%s: %v, %d batches beyond the third", name, err, -s.n)
		}
		cancel()
	}
}

// TestCheck compares a GPU with profiles that it has and does not have. The host slows down each batch except the
// third of a size, which no profile shows.
func TestCheck(t *testing.T) {
	const alpha, beta = 500 * time.Microsecond, 2 * time.Millisecond
	m := emulatedModel(t, 4, alpha, beta)
	e, slot := open(t, m)
	defer e.Close()
	runs := map[int]int{}
	clock := func(b device.Batch) (time.Duration, error) {
		took := alpha*time.Duration(b.Rows) + beta
		if runs[b.Rows]++; runs[b.Rows]%3 != 0 {
			took *= 100
		}
		return took, nil
	}
	for name, c := range map[string]struct {
		alpha, beta time.Duration
		want        bool
	}{
		"its own":            {alpha, beta, true},
		"a twelfth faster":   {alpha * 11 / 12, beta * 11 / 12, true},
		"a fifth faster":     {alpha * 5 / 6, beta * 5 / 6, false},
		"slower, not by far": {alpha * 2, beta * 2, true},
		"a faster host's":    {50 * time.Microsecond, 200 * time.Microsecond, false},
		"far slower host's":  {5 * time.Second, time.Second, false},
	} {
		p, err := profile.Linear(c.alpha, c.beta, 4)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := Check(context.Background(), clock, m, slot, p, 1); err != nil || ok != c.want {
			t.Errorf("%s: %v %v, want %v", name, ok, err, c.want)
		}
	}

	// One of two lanes that runs alone may be twice as fast as while both run.
	for slowdown, want := range map[int]bool{1: false, 2: true} {
		p, err := profile.Linear(5*alpha, 5*beta, 4)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := Check(context.Background(), clock, m, slot, p, slowdown); err != nil || ok != want {
			t.Errorf("five times as fast alone, lanes slow it down by %d: %v %v, want %v", slowdown, ok, err, want)
		}
	}
}
