package scale

import (
	"context"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

func small() Options {
	return Options{GPUs: 24, Models: 5, Share: 0.4, Span: 2 * time.Minute, Start: 5 * time.Second, Gamma: 1, Seed: 3}
}

// TestArrivalsFollowTheRates: in windows of ten seconds, each model has the requests that its rate asks for.
func TestArrivalsFollowTheRates(t *testing.T) {
	o := small()
	w, err := NewWorkload(Spread(profile.GTX1080Ti(), o.Models), o.GPUs, o.Share, o.Span, o.Seed)
	if err != nil {
		t.Fatal(err)
	}
	all := w.Arrivals(arrivals.Poisson, 9)
	counts := make([][]float64, o.Models)
	for i := range counts {
		counts[i] = make([]float64, int(o.Span/(10*time.Second)))
	}
	for i, a := range all {
		if i > 0 && a.At < all[i-1].At || a.At >= o.Span {
			t.Fatalf("arrival %d at %v is out of order or past the end", i, a.At)
		}
		counts[a.Model][a.At/(10*time.Second)]++
	}
	for m := range counts {
		for k, got := range counts[m] {
			want := 0.0
			for s := range 10 {
				want += w.Rate(m, time.Duration(10*k+s)*time.Second)
			}
			if math.Abs(got-want) > 6*math.Sqrt(want)+0.03*want {
				t.Errorf("model %d, window %d: %v requests, want about %.0f", m, k, got, want)
			}
		}
	}
	if !reflect.DeepEqual(all, w.Arrivals(arrivals.Poisson, 9)) {
		t.Error("the same seed gave other arrivals")
	}
}

// TestClusterFollowsTheLoad: every autoscaler ends every request, holds no more GPUs than there are, and the scaler
// loses fewer requests than the paper's rule.
func TestClusterFollowsTheLoad(t *testing.T) {
	o := small()
	_, rows, err := Run(context.Background(), o, Autoscalers, func(Row) {})
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]Row{}
	for _, r := range rows {
		byName[r.Policy] = r
		for s, x := range r.Samples {
			if x.Held > o.GPUs || x.Serving > x.Held || x.Ordered > x.Held {
				t.Fatalf("%s, second %d: %+v of %d GPUs", r.Policy, s, x, o.GPUs)
			}
		}
		if r.Windows != 12 || r.GPUSeconds <= 0 || r.BadPct > 50 {
			t.Errorf("%+v", r)
		}
		t.Logf("%s: ratio %.3f, worst %.2f %%, all %.3f %%, short %d", r.Policy, r.Ratio, r.BadPctMax, r.BadPct, r.Short)
	}
	if c := byName["clairvoyant"]; math.Abs(c.Ratio-1) > 0.03 || c.BadPct > 4 { // u* is where 1 % go bad at steady rates
		t.Errorf("who knows the rates has ratio %.3f and %.2f %% bad", c.Ratio, c.BadPct)
	}
	if byName["downbeat"].BadPct >= byName["paper"].BadPct {
		t.Errorf("%.2f %% bad, by the paper's rule %.2f %%: want fewer", byName["downbeat"].BadPct, byName["paper"].BadPct)
	}

	_, again, err := Run(context.Background(), o, Autoscalers[:1], func(Row) {})
	if err != nil || !reflect.DeepEqual(again[0], rows[0]) {
		t.Errorf("a second run differs (%v)", err)
	}
}

// TestClusterObeysLate: GPUs serve a start after their order, and those given back end their batches first.
func TestClusterObeysLate(t *testing.T) {
	o := small()
	o.Span = time.Minute
	steps := func(now time.Duration, _ Seen) int {
		return map[bool]int{true: 20, false: 5}[now >= 20*time.Second && now < 40*time.Second]
	}
	_, rows, err := Run(context.Background(), o, []Autoscaler{{Name: "steps", New: func(*Workload, Options) Rule { return steps }}}, func(Row) {})
	if err != nil {
		t.Fatal(err)
	}
	for s, x := range rows[0].Samples {
		now := time.Duration(s+1) * time.Second
		switch {
		case now > 21*time.Second && now < 25*time.Second && (x.Serving > 5 || x.Ordered != 20):
			t.Errorf("%v: %+v: want 5 serving, 20 ordered", now, x)
		case now > 26*time.Second && now <= 40*time.Second && x.Serving != 20:
			t.Errorf("%v: %+v: want 20 serving", now, x)
		case now > 42*time.Second && (x.Serving != 5 || x.Held != 5):
			t.Errorf("%v: %+v: want 5 and no more", now, x)
		}
	}
}

func TestScaleRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*Options){
		"gpus 0":      func(o *Options) { o.GPUs = 0 },
		"models 99":   func(o *Options) { o.Models = 99 },
		"share NaN":   func(o *Options) { o.Share = math.NaN() },
		"span 1s":     func(o *Options) { o.Span = time.Second },
		"start -1s: ": func(o *Options) { o.Start = -time.Second },
	} {
		o := small()
		spoil(&o)
		if _, _, err := Run(context.Background(), o, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if _, err := Select("downbeat,nobody"); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("error %v, want one that names nobody", err)
	}
	if _, err := NewWorkload(nil, 8, 0.5, time.Minute, 1); err == nil || !strings.Contains(err.Error(), "0 models, 8 GPUs") {
		t.Errorf("a workload without models: %v", err)
	}
	if n := plan.DefaultTargets().GPUsFor(0); n != 0 {
		t.Errorf("%d GPUs for nothing", n)
	}
}
