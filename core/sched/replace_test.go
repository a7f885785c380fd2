package sched

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
)

// pair is a Partition and a Ranker with one GPU, whose batches take the time of their profile.
type pair struct {
	t       *testing.T
	p       *Partition
	r       *Ranker
	now     Time
	next    RequestID
	running []Batch
	served  int
}

const pairModel = ModelID(7)

func newPair(t *testing.T) (*pair, Model) {
	x := &pair{t: t, p: NewPartition(Options{Number: 1}), r: NewRanker(1, Options{})}
	m := Model{Profile: line(t, time.Millisecond, 2*time.Millisecond, 4), SLO: 20 * ms, SubCluster: 1}
	x.p.SetGPUs(0, 1, 1)
	if err := x.p.AddModel(0, pairModel, m); err != nil {
		t.Fatal(err)
	}
	if err := x.r.AddGPU(0, 0, 1); err != nil {
		t.Fatal(err)
	}
	return x, m
}

// ask enqueues a request and carries no messages.
func (x *pair) ask() {
	x.next++
	x.p.Enqueue(x.now, Request{ID: x.next, Model: pairModel, Deadline: x.now.Add(20 * ms)})
}

// carry passes messages between the halves until none is left.
func (x *pair) carry() {
	for {
		o := x.p.Outputs()
		for _, b := range o.Batches {
			x.served += len(b.Requests)
			b.Requests = nil
			x.running = append(x.running, b)
		}
		for _, f := range o.Frees {
			x.r.Free(x.now, &f)
		}
		for _, c := range o.Candidates {
			x.r.Candidate(x.now, &c)
		}
		o.Reset()

		grants := slices.Clone(x.r.Advance(x.now))
		if len(grants) == 0 {
			return
		}
		for _, g := range grants {
			x.p.Grant(x.now, g)
		}
	}
}

// pass lets time pass.
func (x *pair) pass(d Duration) {
	x.carry()
	for end := x.now.Add(d); ; x.carry() {
		at := min(x.p.NextWake(), x.r.NextWake(), end)
		for _, b := range x.running {
			at = min(at, b.Finish)
		}
		x.now = max(x.now, at)
		x.running = slices.DeleteFunc(x.running, func(b Batch) bool {
			if b.Finish > x.now {
				return false
			}
			if err := x.r.Complete(x.now, b.ID, b.GPU, b.Finish); err != nil {
				x.t.Fatal(err)
			}
			return true
		})
		if x.now >= end {
			return
		}
		x.p.Advance(x.now)
	}
}

// TestLateCandidateOfAReplacedModel: a candidate that was under way while its model was replaced arrives after Gone.
// It must count as old, and the model's later candidates as new.
func TestLateCandidateOfAReplacedModel(t *testing.T) {
	x, m := newPair(t)
	for range 200 { // one second
		x.ask()
		x.pass(5 * ms)
	}

	for range 4 { // a full batch: ripe at once
		x.ask()
	}
	late := slices.Clone(x.p.Outputs().Candidates)
	x.p.Outputs().Reset()

	x.p.RemoveModel(x.now, pairModel)
	x.carry()
	for _, c := range late { // Gone is newer: a late candidate must not revive the model
		x.r.Candidate(x.now, &c)
	}
	if got := x.r.Advance(x.now); len(got) != 0 {
		t.Errorf("a removed model is granted %+v", got)
	}
	if err := x.p.AddModel(x.now, pairModel, m); err != nil {
		t.Fatal(err)
	}
	for _, c := range late {
		x.r.Candidate(x.now, &c)
	}

	x.served = 0
	for range 200 {
		x.ask()
		x.pass(5 * ms)
	}
	x.pass(20 * ms)
	if x.served != 200 {
		t.Errorf("after its replacement %d of 200 requests of the model were served", x.served)
	}
}

// TestChangedModelKeepsWhatItLearned: a slower backend that joins changes a model's profile; the queued requests are
// served, and the learned arrival rate and debt stay.
func TestChangedModelKeepsWhatItLearned(t *testing.T) {
	x, m := newPair(t)
	for range 400 {
		x.ask()
		x.pass(5 * ms)
	}
	for range 3 {
		x.ask()
	}
	d := &x.p.models[x.p.index[pairModel]-1]
	d.debt, d.margin = 2*ms, 1*ms
	before := *d

	m.Profile = line(t, time.Millisecond/2, 6*time.Millisecond, 5)
	if err := x.p.ChangeModel(x.now, pairModel, m); err != nil {
		t.Fatal(err)
	}
	if d.rate.perNS != before.rate.perNS || d.gaps != before.gaps || d.last != before.last || d.debt != before.debt ||
		d.margin != before.margin || d.budget != before.budget || d.grantAt != before.grantAt {
		t.Errorf("rate %+v, gaps %v, debt %d, margin %d, budget %d became %+v, %v, %d, %d, %d", before.rate, before.gaps,
			before.debt, before.margin, before.budget, d.rate, d.gaps, d.debt, d.margin, d.budget)
	}
	if d.rate.demand <= before.rate.demand || d.max != 5 {
		t.Errorf("with the slower profile the demand is %d, was %d; batches are up to %d", d.rate.demand, before.rate.demand, d.max)
	}
	queued := d.q.len()
	x.served = 0
	x.pass(20 * ms)
	if x.served != queued || queued < 3 {
		t.Errorf("%d of %d queued requests were served after the change", x.served, queued)
	}
}

// TestChangedModelDropsWhatItCannotServe: requests without a chance under the new profile, queue maximum or home end
// with the matching reason.
func TestChangedModelDropsWhatItCannotServe(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Model)
		want   []vocabulary.Reason
	}{
		"a profile too slow for the deadlines": {func(m *Model) { m.Profile, m.SLO = line(t, time.Millisecond, 25*time.Millisecond, 4), 40*ms },
			[]vocabulary.Reason{vocabulary.DeadlineCannotBeMet, vocabulary.DeadlineCannotBeMet, vocabulary.DeadlineCannotBeMet}},
		"a shorter queue":                  {func(m *Model) { m.QueueMax = 1 }, []vocabulary.Reason{vocabulary.QueueFull, vocabulary.QueueFull}},
		"a sub-cluster without GPUs":       {func(m *Model) { m.SubCluster = 2 }, []vocabulary.Reason{vocabulary.NoBackend, vocabulary.NoBackend, vocabulary.NoBackend}},
		"nothing":                          {func(m *Model) {}, nil},
		"an SLO below ℓ(1), an error":      {func(m *Model) { m.SLO = 1 }, nil},
		"a model that is unknown, refused": {nil, nil},
	} {
		x, m := newPair(t)
		for range 3 {
			x.ask()
		}
		x.p.Outputs().Reset()
		if c.change == nil {
			if err := x.p.ChangeModel(x.now, pairModel+1, m); !errors.Is(err, ErrUnknown) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}

		c.change(&m)
		if err := x.p.ChangeModel(x.now, pairModel, m); (err != nil) != (m.SLO == 1) || err != nil && !strings.Contains(err.Error(), "SLO 1 ns, want at least ℓ(1)") {
			t.Errorf("%s: %v", name, err)
		}
		var got []vocabulary.Reason
		for _, d := range x.p.Outputs().Drops {
			got = append(got, d.Reason)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: requests ended with %v, want %v", name, got, c.want)
		}
	}
}

// TestChangedModelMoves: a model that moves to another sub-cluster asks for GPUs only there, for its queued requests.
func TestChangedModelMoves(t *testing.T) {
	x, m := newPair(t)
	there := NewRanker(2, Options{})
	if err := there.AddGPU(0, 1, 2); err != nil {
		t.Fatal(err)
	}
	x.p.SetGPUs(0, 2, 1)
	for range 4 { // ripe at once
		x.ask()
	}
	x.carryTo(x.r)
	grant := slices.Clone(x.r.Advance(x.now))

	m.SubCluster = 2
	if err := x.p.ChangeModel(x.now, pairModel, m); err != nil {
		t.Fatal(err)
	}
	for _, g := range grant { // under way during the move
		x.p.Grant(x.now, g)
	}
	if n := len(x.p.Outputs().Batches); len(grant) != 1 || n != 0 {
		t.Errorf("%d grants of the old sub-cluster made %d batches", len(grant), n)
	}
	x.carryTo(x.r, there)
	if got := x.r.Advance(x.now); len(got) != 0 {
		t.Errorf("the old sub-cluster grants %+v", got)
	}
	for _, g := range there.Advance(x.now) {
		x.p.Grant(x.now, g)
	}
	if b := x.p.Outputs().Batches; len(b) != 1 || b[0].GPU != 1 || len(b[0].Requests) != 4 {
		t.Errorf("the new sub-cluster runs %+v", b)
	}
}

// carryTo passes each message to its Ranker.
func (x *pair) carryTo(rankers ...*Ranker) {
	o := x.p.Outputs()
	for _, r := range rankers {
		for _, f := range o.Frees {
			if f.SubCluster == r.number {
				r.Free(x.now, &f)
			}
		}
		for _, c := range o.Candidates {
			if c.SubCluster == r.number {
				r.Candidate(x.now, &c)
			}
		}
	}
	o.Reset()
}
