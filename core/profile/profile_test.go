package profile

import (
	"math"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestNewRefusesBadTables(t *testing.T) {
	for name, tc := range map[string]struct {
		table []time.Duration
		want  string
	}{
		"empty":      {nil, "empty table"},
		"zero":       {[]time.Duration{0, ms}, "ℓ(1)"},
		"negative":   {[]time.Duration{ms, -ms}, "ℓ(2)"},
		"decreasing": {[]time.Duration{ms, 3 * ms, 2 * ms}, "ℓ(3)"},
		"too long":   {make([]time.Duration, BatchLimit+1), "batch sizes"},
		"too slow":   {[]time.Duration{2 * LatencyLimit}, "ℓ(1)"},
	} {
		if _, err := New(tc.table); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one that says %q", name, err, tc.want)
		}
	}
}

func TestLinearMatchesFormula(t *testing.T) {
	p, err := Linear(2*ms, 5*ms, 10)
	if err != nil {
		t.Fatal(err)
	}
	for b := 1; b <= 14; b++ {
		if got, want := p.Exec(b), time.Duration(b)*2*ms+5*ms; got != want {
			t.Errorf("Exec(%d) = %v, want %v", b, got, want)
		}
	}
	for d, want := range map[time.Duration]int{6 * ms: 0, 7 * ms: 1, 8 * ms: 1, 9 * ms: 2, 25 * ms: 10, 99 * ms: 10} {
		if got := p.BatchMax(d); got != want {
			t.Errorf("BatchMax(%v) = %d, want %d", d, got, want)
		}
	}
	for want, bad := range map[string]func() (*Profile, error){
		"alpha = 0s":      func() (*Profile, error) { return Linear(0, ms, 1) },
		"beta = -1ns":     func() (*Profile, error) { return Linear(ms, -1, 1) },
		"batch maximum 0": func() (*Profile, error) { return Linear(ms, ms, 0) },
	} {
		if _, err := bad(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %s", err, want)
		}
	}
}

func TestFitRecoversLine(t *testing.T) {
	var size []int
	var lat []time.Duration
	for b := 1; b <= 32; b *= 2 {
		size = append(size, b)
		lat = append(lat, time.Duration(b)*1053*time.Microsecond+5072*time.Microsecond)
	}
	l, err := Fit(size, lat)
	if err != nil {
		t.Fatal(err)
	}
	if l.Alpha != 1053*time.Microsecond || l.Beta != 5072*time.Microsecond || math.Abs(l.R2-1) > 1e-9 {
		t.Errorf("Fit = %+v, want α 1.053 ms, β 5.072 ms, R² 1", l)
	}
	for want, c := range map[string]struct {
		sizes     []int
		latencies []time.Duration
	}{
		"2 measurements of one size":    {[]int{4, 4}, []time.Duration{ms, ms}},
		"falls with the batch size":     {[]int{1, 2}, []time.Duration{2 * ms, ms}},
		"measurement 0: size 0":         {[]int{0, 2}, []time.Duration{ms, ms}},
		"2 sizes and 1 latencies":       {[]int{1, 2}, []time.Duration{ms}},
		"measurement 1: size 2 latency": {[]int{1, 2}, []time.Duration{ms, 0}},
	} {
		if _, err := Fit(c.sizes, c.latencies); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %s", err, want)
		}
	}
	if l, err := Fit([]int{1, 2}, []time.Duration{ms, 3 * ms}); err != nil || l.Beta != 0 || l.Alpha <= 0 {
		t.Errorf("negative β: %+v, %v; want β 0", l, err)
	}
}

func TestZooIsTheAppendix(t *testing.T) {
	for name, tc := range map[string]struct {
		zoo   []Entry
		n     int
		gt2   int
		batch int
	}{"1080Ti": {GTX1080Ti(), 35, 23, 4}, "A100": {A100(), 37, 29, 4}} {
		if len(tc.zoo) != tc.n {
			t.Errorf("%s has %d models, want %d", name, len(tc.zoo), tc.n)
		}
		gt2 := 0
		for _, e := range tc.zoo {
			p, err := e.Profile()
			if err != nil {
				t.Fatal(err)
			}
			// Appendix B: "Latency SLO … ensures that each model can run with batch size … 4".
			if p.Max() < tc.batch {
				t.Errorf("%s %s: largest batch %d in %v", name, e.Name, p.Max(), e.SLO)
			}
			if e.Ratio() > 2 {
				gt2++
			}
		}
		if gt2 != tc.gt2 {
			t.Errorf("%s: %d models with β/α > 2, want %d", name, gt2, tc.gt2)
		}
	}
}

func TestReadCSV(t *testing.T) {
	const head = "model,alpha_ms,beta_ms,slo_ms\n"
	got, err := ReadCSV(strings.NewReader(head + "a,1.5,2,20\nb, 0.25 ,0,1\n"))
	if err != nil || len(got) != 2 || got[0] != (Entry{"a", 1500 * time.Microsecond, 2 * ms, 20 * ms}) {
		t.Fatalf("got %v, %v", got, err)
	}
	for text, want := range map[string]string{
		"":                           "header",
		"model,alpha,beta,slo\n":     `"alpha_ms"`,
		head + "a,x,2,20\n":          `alpha_ms = "x"`,
		head + "a,NaN,2,20\n":        "alpha_ms",
		head + "a,1,2,inf\n":         "slo_ms",
		head + "a,0,2,20\n":          "alpha",
		head + "a,1,20,20\n":         "shorter than ℓ(1)",
		head + "a,1,2,20\na,1,2,3\n": "twice",
		head + "a,1,2\n":             "fields",
		head + ",1,2,20\n":           "empty",
	} {
		if _, err := ReadCSV(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one that says %s", text, err, want)
		}
	}
}

func FuzzReadCSV(f *testing.F) {
	f.Add("model,alpha_ms,beta_ms,slo_ms\na,1,2,20\n")
	f.Add("model,alpha_ms,beta_ms,slo_ms\na,NaN,2,1e300\n")
	f.Fuzz(func(t *testing.T, text string) {
		es, err := ReadCSV(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, e := range es {
			p, err := e.Profile()
			if err != nil || p.Exec(1) <= 0 || p.Exec(p.Max()) > e.SLO {
				t.Fatalf("accepted %+v: %v", e, err)
			}
		}
	})
}
