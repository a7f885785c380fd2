package sched

import (
	"math/rand/v2"
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
)

// pickStepwise is pick looking at one head after the other, and at the whole queue for the lowest priority.
func pickStepwise(p *Partition, now Time, m *model, g Grant) (skip, b int) {
	lowest := Priority(255)
	for i := range m.q.len() {
		lowest = min(lowest, m.q.at(i).Priority)
	}
	b = p.largestBatch(now, m, &m.execution, 0, g.FreeAt)
	if b >= m.q.len() || m.enough(b, g.Load) {
		return 0, b
	}

	best, most := 0, b
	for h := 1; h < m.q.len() && m.q.at(h-1).Priority == lowest; h++ {
		n := p.largestBatch(now, m, &m.execution, h, g.FreeAt)
		if m.enough(n, g.Load) {
			return h, n
		}
		if n > most {
			best, most = h, n
		}
		if n == m.q.len()-h {
			break
		}
	}
	if g.Load >= 1 && m.pays(b, most) {
		return best, most
	}
	return 0, b
}

// TestPickAgainstSteps: the window that is found by halving is the one that looking at each head finds, with and
// without priorities.
func TestPickAgainstSteps(t *testing.T) {
	slid := 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		p := NewPartition(Options{Ctrl: Duration(rng.IntN(3)) * ms / 4, Data: Duration(rng.IntN(3)) * 50_000})
		p.SetGPUs(0, 0, 1)
		m := Model{Profile: line(t, time.Millisecond, time.Duration(1+rng.IntN(20))*time.Millisecond, 1+rng.IntN(40)), SLO: 100 * ms,
			Rate: float64(1 + rng.IntN(3000))}
		if err := p.AddModel(0, 1, m); err != nil {
			t.Fatal(err)
		}
		for i := range 1 + rng.IntN(200) {
			r := Request{ID: RequestID(i), Model: 1, Deadline: Time(25*ms) + Time(rng.Int64N(1+rng.Int64N(int64(100*ms))))}
			if seed%2 == 1 && rng.IntN(8) < int(seed%16) {
				r.Priority = Priority(rng.IntN(4))
			}
			p.Enqueue(0, r)
		}
		d := &p.models[0]
		if d.q.len() == 0 {
			continue
		}

		g := Grant{Model: 1, FreeAt: Time(rng.Int64N(int64(20 * ms))), Load: 0.8 + rng.Float64()/2}
		wantSkip, wantB := pickStepwise(p, 0, d, g)
		if skip, b := p.pickBatch(0, d, &d.execution, 0, g.FreeAt, g.Load); skip != wantSkip || b != wantB {
			t.Fatalf("seed %d: pick skips %d and takes %d of %d, want %d and %d", seed, skip, b, d.q.len(), wantSkip, wantB)
		}
		if wantSkip > 0 {
			slid++
		}
	}
	if slid < 300 {
		t.Errorf("the window slid in %d cases, want more", slid)
	}
}

// TestRanksAgainstACount: after whatever comes and goes, ranks hold what counting the queue gives, a batch holds the
// head and the highest priorities, and what stays is in order.
func TestRanksAgainstACount(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 3))
		p := NewPartition(Options{})
		p.SetGPUs(0, 0, 1)
		if err := p.AddModel(0, 1, Model{Profile: line(t, time.Millisecond, time.Millisecond, 8), SLO: 100 * ms, QueueMax: 30}); err != nil {
			t.Fatal(err)
		}
		m, now := &p.models[0], Time(0)
		for id := range RequestID(200) {
			now += Time(rng.Int64N(int64(ms)))
			p.Enqueue(now, Request{ID: id, Model: 1, Deadline: now.Add(Duration(rng.Int64N(int64(60 * ms)))), Priority: Priority(rng.IntN(1 + rng.IntN(6)))})
			switch {
			case rng.IntN(8) == 0:
				p.Cancel(now, 1, id-RequestID(rng.IntN(5)), 0)
			case rng.IntN(20) == 0:
				p.Grant(now, Grant{Model: 1, FreeAt: now, Load: 1})
			}
			p.Outputs().Reset()
			checkRanks(t, seed, m)
		}
	}
}

func checkRanks(t *testing.T, seed uint64, m *model) {
	t.Helper()
	var count [256]int32
	ranked, lowest := int32(0), Priority(255)
	for i := range m.q.len() {
		r := m.q.at(i)
		count[r.Priority]++
		lowest = min(lowest, r.Priority)
		if r.Priority > 0 {
			ranked++
		}
		if i > 0 && r.Deadline < m.q.at(i-1).Deadline {
			t.Fatalf("seed %d: place %d is out of order", seed, i)
		}
	}
	count[0] = 0
	if ranked != m.priorities.n || m.priorities.table != nil && m.priorities.table.count != count {
		t.Fatalf("seed %d: ranks %+v, want %d", seed, m.priorities, ranked)
	}
	if n := m.q.len(); n > 0 && m.priorities.lowest(n) != lowest {
		t.Fatalf("seed %d: lowest is %d, want %d", seed, m.priorities.lowest(n), lowest)
	}
}

// overloaded is a model with n requests of one priority, of which a grant can serve few.
func overloaded(t testing.TB, n int, pr Priority) *Partition {
	p := NewPartition(Options{})
	p.SetGPUs(0, 1, 1)
	m := Model{Profile: line(t, time.Millisecond, 20*time.Millisecond, 64), SLO: 200 * ms, SubCluster: 1, QueueMax: n, Rate: 20000}
	if err := p.AddModel(0, 1, m); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		d := 60 * ms
		if i == n-1 {
			d = 200 * ms // keeps the target large
		}
		if why := p.Enqueue(0, Request{ID: RequestID(i), Model: 1, Deadline: Time(d), Priority: pr}); why != vocabulary.ReasonNone {
			t.Fatal(why)
		}
	}
	p.Outputs().Reset()
	return p
}

// looked returns how many requests searches by priority have looked at.
func (m *model) looked() uint64 {
	if m.priorities.table == nil {
		return 0
	}
	return m.priorities.table.looked
}

// TestOnePriorityIsNotSearched: where everybody has the same priority, neither a grant nor a refusal looks at more
// requests than where nobody has one. With a look through the queue for each head a grant took 2,000 times as long.
func TestOnePriorityIsNotSearched(t *testing.T) {
	const n = 20_000
	for _, pr := range []Priority{0, 1} {
		p := overloaded(t, n, pr)
		for i := range 100 {
			if why := p.Enqueue(0, Request{ID: RequestID(n + i), Model: 1, Deadline: Time(200 * ms), Priority: pr}); why != vocabulary.QueueFull {
				t.Fatalf("at a full queue: %v", why)
			}
		}
		p.Grant(0, Grant{Model: 1, SubCluster: 1, Load: 1})
		if looked := p.models[0].looked(); looked > 0 {
			t.Errorf("priority %d: %d requests were looked at for a hundred refusals and a grant", pr, looked)
		}
	}
}

// TestPrioritiesAreSearchedShortly: whatever the priorities in a long queue, a refusal looks at searchMax requests at
// most, and a grant for its window and for its batch as well. Before, one request of priority 1 at the tail of 20,000
// made each grant look at all of them.
func TestPrioritiesAreSearchedShortly(t *testing.T) {
	const n = 20_000
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 4))
		p := overloaded(t, n, 0)
		m := &p.models[0]
		for range 1 + rng.IntN(1+int(seed)*50) {
			at := n - 1 - rng.IntN(1+rng.IntN(n))
			m.priorities.sub(m.q.at(at).Priority)
			m.q.at(at).Priority = Priority(1 + rng.IntN(3))
			m.priorities.add(m.q.at(at).Priority)
		}

		before := m.looked()
		p.Enqueue(0, Request{ID: n, Model: 1, Deadline: Time(61 * ms), Priority: Priority(rng.IntN(4))})
		if looked := m.looked() - before; looked > searchMax {
			t.Errorf("seed %d: a refusal looked at %d requests", seed, looked)
		}

		before = m.looked()
		first, b := p.pickBatch(0, m, &m.execution, 0, 0, 1)
		if looked := m.looked() - before; looked > searchMax {
			t.Errorf("seed %d: a window looked at %d requests", seed, looked)
		}

		before = m.looked()
		batch := m.q.takeByPriority(b, nil, &m.priorities)
		if looked := m.looked() - before; looked > searchMax || len(batch) != b {
			t.Errorf("seed %d: a batch of %d behind %d looked at %d requests", seed, b, first, looked)
		}
		checkRanks(t, seed, m)
	}
}

// TestFullQueueGivesWay: at a full queue the latest deadline of the lowest priority gives way to what matters more or
// is due sooner; what is due last is refused.
func TestFullQueueGivesWay(t *testing.T) {
	for name, c := range map[string]struct {
		deadline Duration
		pr       Priority
		out      RequestID // who ends; 0: the request itself is refused
	}{
		"due last":                     {200 * ms, 0, 0},
		"due with the last":            {100 * ms, 0, 0},
		"due sooner":                   {50 * ms, 0, 3},
		"of a higher priority, later":  {200 * ms, 1, 3},
		"of a higher priority, sooner": {50 * ms, 1, 3},
	} {
		p := NewPartition(Options{})
		p.SetGPUs(0, 0, 1)
		if err := p.AddModel(0, 1, Model{Profile: line(t, time.Millisecond, 9*time.Millisecond, 8), SLO: 100 * ms, QueueMax: 4}); err != nil {
			t.Fatal(err)
		}
		for id, r := range []Request{{Deadline: Time(80 * ms)}, {Deadline: Time(90 * ms)}, {Deadline: Time(95 * ms)}, {Deadline: Time(100 * ms), Priority: 2}} {
			r.ID, r.Model = RequestID(id+1), 1
			p.Enqueue(0, r)
		}

		why := p.Enqueue(0, Request{ID: 9, Model: 1, Deadline: Time(c.deadline), Priority: c.pr})
		drops := p.Outputs().Drops
		switch {
		case c.out == 0 && (why != vocabulary.QueueFull || len(drops) != 0):
			t.Errorf("%s: %v, drops %+v; want it refused", name, why, drops)
		case c.out != 0 && (why != vocabulary.ReasonNone || len(drops) != 1 || drops[0].ID != c.out || drops[0].Reason != vocabulary.QueueFull):
			t.Errorf("%s: %v, drops %+v; want request %d to give way", name, why, drops, c.out)
		}
	}
}
