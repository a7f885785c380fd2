package engine

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
	"downbeat.dev/internal/logtest"
)

// scaled returns slope, slower by a factor.
func scaled(by float64) (table []time.Duration) {
	for _, d := range slope {
		table = append(table, time.Duration(by*float64(d)))
	}
	return table
}

// familyHello returns a hello of a backend with variants v-s, v-m and v-l. More accurate variants are slower.
func familyHello(name string, gpus int) wire.BackendHello {
	h := hello(name, gpus, slope)
	for _, v := range []struct {
		name     string
		accuracy float64
		by       float64
	}{{"s", 0.8, 0.25}, {"m", 0.9, 0.5}, {"l", 0.95, 1}} {
		h.Models = append(h.Models, wire.BackendModel{Profile: scaled(v.by),
			Info: model.Info{Name: "v-" + v.name, Version: "1", SLO: 50e6, Family: "v", Variant: v.name, Accuracy: v.accuracy}})
	}
	return h
}

// TestFamilyIsAnsweredByItsVariants shows that a request for the family gets the best variant that the load allows,
// and a request for a variant gets that variant.
func TestFamilyIsAnsweredByItsVariants(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(familyHello("b", 1))
	b.tables = true
	f := s.frontend()
	v := f.models["v"]
	if !v.Ready || v.Version != "" || v.Accuracy != 0.95 || len(v.Variants) != 3 || len(v.Floors) != 3 || v.SLO != 50e6 {
		t.Fatalf("%+v", v)
	}
	for i, want := range []float64{0.8, 0.9, 0.95} {
		if v.Floors[i].Accuracy != want {
			t.Errorf("floor %d is %v, want %v", i, v.Floors[i].Accuracy, want)
		}
	}

	f.ask(1, "v", 50*ms)
	s.run(s.clock.now + 100*ms)
	s.ended(1, "output")
	if got := b.answers[1]; got != f.models["v-l"].ID+1 {
		t.Errorf("an idle GPU answered with %d, want v-l, %d", got, f.models["v-l"].ID+1)
	}
	f.ask(2, "v-s", 50*ms)
	s.run(s.clock.now + 100*ms)
	s.ended(2, "output")
	if got := b.answers[2]; got != 0 {
		t.Errorf("a model that was asked for by itself is named, as %d", got)
	}

	// v-l serves 667 requests/s, v-s four times as many.
	first := uint64(10)
	last := s.steadily(f, "v", first, ms/2, 2000*ms)
	s.run(s.clock.now + 200*ms)
	if n := s.served(first+1, last); float64(n) < 0.99*float64(last-first) {
		t.Errorf("%d of %d requests were served at three times what v-l does", n, last-first)
	}
}

// TestFloorsAreKept shows that requests with a floor are answered by variants at or above it, whatever the load.
func TestFloorsAreKept(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(familyHello("b", 2))
	b.tables = true
	f := s.frontend()
	floors := f.models["v"].Floors
	accuracy := map[uint32]float64{0: 0}
	for _, m := range f.models {
		accuracy[m.ID+1] = m.Accuracy
	}
	for id := uint64(1); id <= 3000; id++ {
		f.Submit([]wire.Submit{{ID: id, Model: floors[id%3].ID, Budget: 50e6}})
		s.run(s.clock.now + ms)
	}
	s.run(s.clock.now + 200*ms)

	served := [3]int{}
	for id := uint64(1); id <= 3000; id++ {
		if len(s.ends[id]) != 1 {
			t.Fatalf("request %d ended %v", id, s.ends[id])
		}
		if s.ends[id][0] != "output" {
			continue
		}
		served[id%3]++
		if got := accuracy[b.answers[id]]; got < floors[id%3].Accuracy {
			t.Fatalf("request %d with floor %v was answered at %v", id, floors[id%3].Accuracy, got)
		}
	}
	if slices.Min(served[:]) < 900 {
		t.Errorf("of 1,000 requests of each floor %v were served", served)
	}
}

// TestWholeNetworksHaveTheFloors: of more accuracies than classes those of exits are left out, so that a floor just below a network's
// accuracy is not served by a larger one alone. The lowest variant, an exit, keeps its class.
func TestWholeNetworksHaveTheFloors(t *testing.T) {
	for _, c := range []struct {
		least    float64
		networks []string // that have exits 0.01 and 0.02 below them, the largest 0.04 and 0.08
		want     []float64
	}{
		{0, []string{"s", "m", "l"}, []float64{0.78, 0.8, 0.9, 0.95}},
		{0.85, []string{"s", "m", "l"}, []float64{0.87, 0.88, 0.9, 0.95}}, // two networks keep it: too few
		{0, []string{"l"}, []float64{0.8, 0.87, 0.9, 0.95}},
		{0, nil, []float64{0.8, 0.9, 0.95}},
	} {
		s := newStage(t, Options{Floors: map[string]float64{"v": c.least}})
		h := familyHello("b", 1)
		for _, m := range slices.Clone(h.Models) {
			if !slices.Contains(c.networks, m.Info.Variant) {
				continue
			}
			for k, gap := range []float64{0.02, 0.01} {
				if m.Info.Variant == "l" {
					gap *= 4
				}
				exit := m
				exit.Info.ExitOf, exit.Info.Accuracy = m.Info.Name, m.Info.Accuracy-gap
				exit.Info.Name = fmt.Sprintf("%s-exit%d", m.Info.Name, k+1)
				h.Models = append(h.Models, exit)
			}
		}
		s.mustBackend(h)

		var got []float64
		for _, floor := range s.frontend().models["v"].Floors {
			got = append(got, math.Round(floor.Accuracy*1e6)/1e6)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("exits of %v, from %v: floors %v, want %v", c.networks, c.least, got, c.want)
		}
	}
}

// TestFamilyTakesPicturesIfAllVariantsDo shows that a family's input takes pictures only if every variant makes them
// into the same tensor: any of them may answer.
func TestFamilyTakesPicturesIfAllVariantsDo(t *testing.T) {
	plain := model.Picture{Channels: model.ChannelsRGB, Scale: 1, Std: [3]float32{1, 1, 1}}
	other := plain
	other.Channels = model.ChannelsBGR
	for name, c := range map[string]struct {
		last  *model.Picture
		takes bool
	}{"the same": {&plain, true}, "another": {&other, false}, "none": {nil, false}} {
		s := newStage(t, Options{})
		h := familyHello("b", 1)
		for i := range h.Models {
			picture := plain // each backend's message has its own
			h.Models[i].Info.Inputs = []model.Tensor{{Name: "x", Datatype: model.Uint8, Shape: []int64{2, 2, 3}, Picture: &picture}}
		}
		h.Models[len(h.Models)-1].Info.Inputs[0].Picture = c.last
		s.mustBackend(h)
		f := s.frontend()
		if got := f.models["v"].Inputs[0].Picture; (got != nil) != c.takes || got != nil && *got != plain {
			t.Errorf("%s: the family has %+v", name, got)
		}
		if got := f.models["v-s"].Inputs[0].Picture; got == nil || *got != plain {
			t.Errorf("%s: a variant has %+v", name, got)
		}
	}
}

// TestFamiliesThatCannotBeServed shows that such families are refused with the reason, and that their models are
// served separately.
func TestFamiliesThatCannotBeServed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*wire.BackendHello)
		floor  float64
		want   string
	}{
		"unequal tensors":        {func(h *wire.BackendHello) { h.Models[1].Info.Inputs = []model.Tensor{{Name: "x"}} }, 0, "v-l version 1 and v-m version 1 have different"},
		"a model with its name":  {func(h *wire.BackendHello) { h.Models[0].Info.Name = "v" }, 0, "a model has that name"},
		"a floor nobody reaches": {func(*wire.BackendHello) {}, 0.99, "the best variant has 0.95"},
		"an accuracy missing":    {func(h *wire.BackendHello) { h.Models[2].Info.Accuracy = 0 }, 0, "it states no accuracy"},
	} {
		t.Run(name, func(t *testing.T) {
			var log logtest.Buffer
			s := newStage(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Floors: map[string]float64{"v": c.floor}})
			h := familyHello("b", 1)
			c.change(&h)
			b := s.mustBackend(h)
			b.tables = true
			f := s.frontend()
			if strings.Count(log.String(), c.want) != 1 {
				t.Errorf("the log says %q, want %q once", log.String(), c.want)
			}
			if v := f.models["v"]; v.IsFamily() && v.Ready != (name == "an accuracy missing") {
				t.Errorf("%+v", v)
			}
			f.ask(1, "v-m", 50*ms)
			s.run(s.clock.now + 100*ms)
			s.ended(1, "output")
		})
	}
	if _, err := New(Options{Manual: true, Floors: map[string]float64{"v": 2}}); err == nil || !strings.Contains(err.Error(), `"v": 2`) {
		t.Errorf("a floor of 2: %v", err)
	}
}

// TestAFloorThatWasAnnouncedNeverFalls: a request may be on its way, or queued, when a lighter variant returns. The
// floor that it named stays as accurate as announced. The lighter variant answers requests that name its floor, or
// none.
func TestAFloorThatWasAnnouncedNeverFalls(t *testing.T) {
	s := newStage(t, Options{QueueMax: 100})
	large := familyHello("large", 1)
	large.Models = large.Models[2:]
	b := s.mustBackend(large)
	b.tables = true
	f := s.frontend()
	promised := f.models["v"].Floors
	if len(promised) != 1 || promised[0].Accuracy != 0.95 {
		t.Fatalf("floors %+v, want 0.95 alone", promised)
	}

	// Some requests are queued for the family when v-s and v-m come, and some are submitted later under the same id.
	ask := func(from, to uint64) {
		for id := from; id <= to; id++ {
			f.Submit([]wire.Submit{{ID: id, Model: promised[0].ID, Budget: 500e6}})
		}
	}
	ask(1, 40)
	all := s.mustBackend(familyHello("all", 2))
	all.tables = true
	floors := f.models["v"].Floors
	if len(floors) != 3 || floors[0].Accuracy != 0.8 || floors[2] != promised[0] {
		t.Errorf("floors %+v, want 0.8 to 0.95, of which the last is %+v still", floors, promised[0])
	}
	ask(41, 80)
	s.run(s.clock.now + 600*ms)

	for id := uint64(1); id <= 80; id++ {
		s.ended(id, "output")
		for _, x := range []*emulated{b, all} {
			if got := x.answers[id]; got == f.models["v-s"].ID+1 || got == f.models["v-m"].ID+1 {
				t.Fatalf("request %d with floor 0.95 was answered by a lighter variant", id)
			}
		}
	}

	// Requests without a floor also get the lighter variants. Without v-s the other floors stay where they are.
	s.steadily(f, "v", 100, ms/4, 500*ms)
	s.run(s.clock.now + 100*ms)
	lighter := 0
	for _, by := range all.answers {
		if by == f.models["v-s"].ID+1 {
			lighter++
		}
	}
	if lighter == 0 {
		t.Error("v-s answered nobody")
	}
	all.Close()
	if again := f.models["v"].Floors; len(again) != 1 || again[0] != promised[0] {
		t.Errorf("floors %+v, want %+v alone", again, promised[0])
	}
}

// TestFamilyFollowsItsVariants: variants on different backends are loaded and unloaded, and an accuracy changes. The
// family's queue survives, and the family is refused once no variant is left.
func TestFamilyFollowsItsVariants(t *testing.T) {
	s := newStage(t, Options{Partitions: 2})
	all := familyHello("all", 2)
	b := s.mustBackend(all)
	b.tables = true
	small := familyHello("small", 1)
	small.Models = small.Models[:1]
	s.mustBackend(small).tables = true
	f := s.frontend()

	last := s.steadily(f, "v", 0, ms, 500*ms)
	l := uint32(2)
	b.Report([]wire.PlacementReport{{GPU: 0, Model: l, State: wire.Unloading}, {GPU: 1, Model: l, State: wire.Unloading}})
	if v := f.models["v"]; v.Accuracy != 0.9 || len(v.Variants) != 2 || len(v.Floors) != 2 {
		t.Errorf("without v-l: %+v", v)
	}
	last = s.steadily(f, "v", last, ms, 500*ms)
	m := all.Models[1]
	m.Info.Accuracy = 0.91
	b.Offer([]wire.Loadable{{Number: 1, Model: m}})
	if v := f.models["v"]; v.Accuracy != 0.91 || f.models["v-m"].Accuracy != 0.91 {
		t.Errorf("a better v-m: %+v, %+v", v, f.models["v-m"])
	}
	last = s.steadily(f, "v", last, ms, 500*ms)
	b.Close()
	last = s.steadily(f, "v", last, 2*ms, 500*ms)
	s.run(s.clock.now + 100*ms)
	if n := s.served(1, last); float64(n) < 0.99*float64(last) {
		t.Errorf("%d of %d requests were served", n, last)
	}

	for _, x := range slices.Clone(s.e.reg.backends) {
		x.Close()
	}
	if f.models["v"].Ready {
		t.Error("a family without variants is ready")
	}
	f.ask(last+1, "v", 50*ms)
	s.ended(last+1, "no_backend")
	s.run(s.clock.now + sched.Time(keptMax) + 200*ms)
	s.come("x")
	if names := fmt.Sprint(s.names()); strings.Contains(names, "v:") || len(s.e.reg.families) != 0 {
		t.Errorf("after an hour %s, families %v", names, s.e.reg.families)
	}
}
