package engine

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/wire"
	"downbeat.dev/internal/logtest"
)

// explainedFamily is a stage with a family in which each variant except the best two is left out for a different
// reason.
func explainedFamily(t *testing.T) (*stage, *front) {
	s := newStage(t, Options{Floors: map[string]float64{"v": 0.85}, QueueMax: 300})
	h := familyHello("b", 1) // v-s has 0.8, below the floor
	add := func(name string, accuracy, by float64, slo int64, loaded ...bool) {
		h.Models = append(h.Models, wire.BackendModel{Profile: scaled(by), Loaded: loaded,
			Info: model.Info{Name: name, Version: "1", SLO: slo, Family: "v", Accuracy: accuracy}})
	}
	add("v-poor", 0.88, 0.6, 50e6)
	add("v-slow", 0.99, 11, 80e6)
	add("v-stored", 0.98, 1, 50e6, false)
	s.mustBackend(h).tables = true
	other := familyHello("c", 1)
	other.Models = other.Models[1:2]
	s.mustBackend(other).tables = true
	return s, s.frontend()
}

// TestExplainSaysWhyVariantsAreLeftOut shows that each variant has its own reason.
func TestExplainSaysWhyVariantsAreLeftOut(t *testing.T) {
	s, f := explainedFamily(t)
	s.steadily(f, "v", 0, ms*2/5, 12000*ms)
	x, err := s.e.Explain()
	if err != nil {
		t.Fatal(err)
	}

	got := map[string]string{}
	for _, v := range x.Families[0].Variants {
		got[v.Model+" "+v.Kind] = v.LeftOut
	}
	for name, want := range map[string]string{
		"v-l gpus": "price: at", "v-m gpus": "", "v-m gpus-2": "", "v-s gpus": "below the floor of 0.88",
		"v-poor gpus": "dominated", "v-slow gpus": "too slow: requests have", "v-l gpus-2": "not resident", "v-stored ": "not resident",
	} {
		if why, ok := got[name]; !ok || !strings.HasPrefix(why, want) || want == "" && why != "" {
			t.Errorf("%s is left out for %q, want %q", name, why, want)
		}
	}
}

// TestExplainTellsShares shows the answers of the last second and of the last minute, and the cost of one more
// answer.
func TestExplainTellsShares(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(familyHello("b", 1)).tables = true
	f := s.frontend()
	last := s.steadily(f, "v", 0, 10*ms, 30_000*ms)
	last = s.steadily(f, "v", last, ms, 40_000*ms)
	s.run(s.clock.now + 60*ms)
	x, err := s.e.Explain()
	if err != nil {
		t.Fatal(err)
	}

	v, k := &x.Families[0], &x.Kinds[0]
	for _, a := range []*Answered{&v.Lately, &v.Minute} {
		sum, mean := 0.0, 0.0
		for _, of := range a.Variants {
			sum, mean = sum+of.Share, mean+of.Share*of.Accuracy
		}
		if math.Abs(sum-1) > 1e-9 || math.Abs(mean-a.Accuracy) > 1e-9 {
			t.Errorf("shares add up to %v, accuracies to %v: %+v", sum, mean, a)
		}
	}
	if v.Lately.Seconds < 1 || v.Lately.Seconds > 7 || v.Minute.Seconds < 60 || v.Minute.Seconds > 66 {
		t.Errorf("the spans are %v and %v s", v.Lately.Seconds, v.Minute.Seconds)
	}
	if v.Minute.Answers >= last || v.Minute.Accuracy <= v.Lately.Accuracy || v.Lately.Accuracy > 0.92 {
		t.Errorf("of %d requests in all, lately %+v, in the last minute %+v", last, v.Lately, v.Minute)
	}
	if !(k.Price > 10 && k.PriceMinute > plan.LeastPrice && k.PriceMinute < k.Price) {
		t.Errorf("the price is %v, over the last minute %v", k.Price, k.PriceMinute)
	}
	if n := v.Next; n == nil || n.Kind != k.Name || math.Abs(n.Cost-k.Price*n.GPUTime/1e3) > 1e-9 {
		t.Errorf("one request more: %+v at %v", n, k.Price)
	}
}

// TestDropsNameTheirRule shows that every request without an answer is counted under the rule that ended it, and
// under no other.
func TestDropsNameTheirRule(t *testing.T) {
	s := newStage(t, Options{QueueMax: 300})
	s.mustBackend(familyHello("b", 1)).tables = true
	f := s.frontend()
	f.ask(1, "v", ms)
	f.ask(2, "v", 0)
	last := uint64(2)
	for range 4 { // far more than the lightest variant can serve
		last = s.burst(f, last, 200)
		last = s.steadily(f, "v", last, ms/10, 400*ms)
	}
	s.burst(f, last, 700)
	s.run(s.clock.now + 200*ms)

	x, err := s.e.Explain()
	if err != nil {
		t.Fatal(err)
	}
	got, reasons := map[string]uint64{}, map[string]uint64{}
	for _, d := range x.Families[0].Minute.Drops {
		got[d.Rule] = d.Requests
		reasons[d.Reason] += d.Requests
	}
	for _, rule := range []string{"arrived too late", "deadline past", "window", "queue full"} {
		if got[rule] == 0 {
			t.Errorf("nothing was dropped by %q: %v", rule, got)
		}
	}
	ended := map[string]uint64{}
	for _, how := range s.ends {
		if how[0] != "output" {
			ended[how[0]]++
		}
	}
	for reason, n := range ended {
		if reasons[reason] != n {
			t.Errorf("%d requests ended with %s, the rules tell of %d: %v", n, reason, reasons[reason], got)
		}
	}
}

// TestExplainCountsWhatWasAnswered shows that requests count as answered once a backend says so, not while their batch
// runs and not if it fails.
func TestExplainCountsWhatWasAnswered(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(familyHello("b", 1)).tables = true
	f := s.frontend()
	for id := range uint64(3) {
		f.ask(id+1, "v", 50*ms)
	}
	for len(s.events) == 0 {
		s.run(s.clock.now + ms)
	}
	minute := func() *Answered {
		x, err := s.e.Explain()
		if err != nil {
			t.Fatal(err)
		}
		return &x.Families[0].Minute
	}
	if m := minute(); m.Answers != 0 || len(m.Variants) != 0 {
		t.Errorf("while the batch runs: %+v", m)
	}

	// One of the three fails.
	s.events[0].m.Failures = []wire.ItemFailure{{Index: 1, Reason: model.InputUnavailable}}
	s.run(s.clock.now + 100*ms)
	if m := minute(); m.Answers != 2 || len(m.Variants) != 1 || m.Variants[0].Share != 1 || len(m.Drops) != 1 || m.Drops[0].Requests != 1 {
		t.Errorf("when two are answered and one has failed: %+v", m)
	}
}

// TestLeftBehindIsTold shows that, for a service with several homes, heads that allowed no batch large enough for the
// load are counted apart from heads that got no GPU in time.
func TestLeftBehindIsTold(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(familyHello("b", 1)).tables = true
	slow := familyHello("c", 1)
	for i := range slow.Models {
		slow.Models[i].Profile = scaled([]float64{0.5, 1, 2}[i])
	}
	s.mustBackend(slow).tables = true
	f, last := s.frontend(), uint64(0)
	for range 4 { // far more than both can serve, at deadlines far apart
		last = s.burst(f, last, 200)
		for range 50 {
			last++
			f.ask(last, "v", 15*ms)
		}
		last = s.steadily(f, "v", last, ms/10, 400*ms)
	}
	s.run(s.clock.now + 200*ms)

	x, err := s.e.Explain()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, d := range x.Families[0].Minute.Drops {
		got[d.Rule] = d.Requests
	}
	if len(x.Kinds) != 2 || got["left behind"] == 0 || got["no GPU in time"] == 0 {
		t.Errorf("%d kinds, dropped by rule: %v; want 2, and both left behind and no GPU in time", len(x.Kinds), got)
	}
}

// burst sends n requests for the family at once.
func (s *stage) burst(f *front, last uint64, n int) uint64 {
	for range n {
		last++
		f.ask(last, "v", 50*ms)
	}
	return last
}

// TestExplainWithoutFamilies shows an explanation without families, and one of a family whose backend has left, with
// the reason.
func TestExplainWithoutFamilies(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(hello("b", 1, slope, "m"))
	if x, err := s.e.Explain(); err != nil || len(x.Kinds)+len(x.Families) != 0 {
		t.Errorf("%+v, %v", x, err)
	}
	b.Close()

	b = s.mustBackend(familyHello("b", 1))
	b.Close()
	x, err := s.e.Explain()
	if err != nil || len(x.Families) != 4 || x.Families[0].Why != "no backend serves a variant" || x.Families[0].Next != nil {
		t.Errorf("%+v, %v", x, err)
	}
}

// TestMarksReachBack shows that an interval reaches back to the latest mark that is old enough, and no further than
// the oldest mark.
func TestMarksReachBack(t *testing.T) {
	var k marks
	if slot, at := k.markBefore(1000*ms, lately); slot != 0 || at != 0 {
		t.Errorf("without marks slot %d at %d", slot, at)
	}
	for now := 1000 * ms; now <= 200_000*ms; now += 100 * ms {
		k.due(now)
	}
	now := 200_050 * ms
	if _, at := k.markBefore(now, lately); now.Sub(at) < lately || now.Sub(at) > lately+markEvery {
		t.Errorf("lately is %v ago", time.Duration(now.Sub(at)))
	}
	if _, at := k.markBefore(now, lastMinute); now.Sub(at) < lastMinute || now.Sub(at) > lastMinute+markEvery {
		t.Errorf("a minute is %v ago", time.Duration(now.Sub(at)))
	}
}

// TestExplainNamesKinds: GPUs without an operator's name have their kind's, each sub-cluster one of its own, and GPUs
// that were granted more time than has passed are wholly busy.
func TestExplainNamesKinds(t *testing.T) {
	s := newStage(t, Options{})
	for i, kind := range []string{"A100", "", "A100"} {
		h := familyHello(fmt.Sprint("b", i), 1)
		h.Details = []wire.GPUDetail{{Kind: kind, Memory: uint64(i+1) << 30}}
		s.mustBackend(h)
	}
	s.run(3_000 * ms)
	homes := s.e.reg.pricing.homes
	if len(homes) == 0 {
		t.Fatal("no prices")
	}
	homes[0].BusyShare = 1.4

	x, err := s.e.Explain()
	var names []string
	for _, k := range x.Kinds {
		names = append(names, k.Name)
	}
	if err != nil || fmt.Sprint(names) != "[A100 gpus A100-2]" || x.Kinds[0].Busy != 1 {
		t.Errorf("kinds %q, the first %v busy, %v: want [A100 gpus A100-2], 1", names, x.Kinds[0].Busy, err)
	}
}

// TestExplainNamesFamiliesThatWereNeverServed: a floor that no variant reaches names the best variant's accuracy, and
// a floor for a family that nobody has is told, since a typing error would leave the intended family without one.
func TestExplainNamesFamiliesThatWereNeverServed(t *testing.T) {
	var log logtest.Buffer
	s := newStage(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Floors: map[string]float64{"v": 0.99, "vv": 0.9}})
	s.mustBackend(familyHello("b", 1))
	other := familyHello("c", 1)
	s.mustBackend(other)
	x, err := s.e.Explain()
	if err != nil || len(x.Families) != 2 {
		t.Fatalf("%+v, %v", x.Families, err)
	}
	for i, want := range []string{"v 0.99 accuracy floor 0.99: the best variant has 0.95", "vv 0.9 no backend has a variant of it"} {
		f := &x.Families[i]
		if got := fmt.Sprint(f.Family, " ", f.Floor, " ", f.Why); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if n := strings.Count(log.String(), "family="+f.Family+" "); n != 1 {
			t.Errorf("%s is %d times in the log:\n%s", f.Family, n, log.String())
		}
	}

	// Frontends hear the reason too, instead of nothing of a family that exists.
	f := s.frontend()
	if m := f.models["v"]; m.Ready || m.Reason != "accuracy floor 0.99: the best variant has 0.95" {
		t.Errorf("the family is announced as %+v", m)
	}
	if m, has := f.models["vv"]; has {
		t.Errorf("a family that nobody has is announced as %+v", m)
	}
	s.clock.now += 2 * 60 * 60_000 * ms
	s.e.reg.forgetModels()
	if m := s.frontend().models["v"]; m.Reason == "" {
		t.Errorf("later it is announced as %+v", m)
	}

	// It is served, and forgotten here, once a backend has a variant.
	h := hello("d", 1, slope)
	h.Models = append(h.Models, wire.BackendModel{Profile: slope, Info: model.Info{Name: "vv-l", Version: "1", SLO: 50e6, Family: "vv", Accuracy: 0.95}})
	s.mustBackend(h)
	if x, err = s.e.Explain(); err != nil || len(x.Families) != 3 || x.Families[0].Family != "vv" || x.Families[0].Why != "" || x.Families[0].Asked || !x.Families[1].Asked || x.Families[2].Family != "v" {
		t.Errorf("%+v, %v", x.Families, err)
	}
}

// TestEveryRuleHasAText: a reader of the explanation learns what each rule that ends requests means.
func TestEveryRuleHasAText(t *testing.T) {
	for rule := 1; rule < ruleCount; rule++ {
		if name, reason, text := describeRule(rule); name == "" || reason == "" || text == "" {
			t.Errorf("rule %d: %q (%s): %q", rule, name, reason, text)
		}
	}
}
