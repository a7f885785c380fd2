package residency

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func table(t *testing.T, device, pinned int64) *Table {
	t.Helper()
	tab, err := NewTable(device, pinned, 0.4)
	must(t, err)
	return tab
}

func add(t *testing.T, tab *Table, name string, k Kind, bytes int64, slo time.Duration) ID {
	t.Helper()
	id, err := tab.Add(Content{Name: name, Kind: k, Bytes: bytes, SLO: slo})
	must(t, err)
	return id
}

func acquire(t *testing.T, tab *Table, now time.Duration, ids ...ID) []Move {
	t.Helper()
	moves, err := tab.Acquire(now, ids, nil)
	must(t, err)
	return moves
}

func TestScoreIsThePapersFormula(t *testing.T) {
	tab := table(t, 100, 0)
	id := add(t, tab, "a", Parameters, 10, 100*ms)
	// R starts at the middle of 67 to 68.6 ms.
	if got, want := tab.Score(id), time.Duration(0.6*67.8e6+0.4*100e6); got != want {
		t.Errorf("score %v, want %v", got, want)
	}
	for i := range 200 { // used every 10 ms, so R approaches that
		acquire(t, tab, time.Duration(i)*10*ms, id)
		tab.Release([]ID{id}, nil)
	}
	if got := tab.Score(id).Round(ms); got != 46*ms {
		t.Errorf("score %v after uses every 10 ms, want 46 ms", got)
	}
}

func TestTheTypeWithTheHighestScoreGoesFirst(t *testing.T) {
	tab := table(t, 30, 100)
	params := add(t, tab, "params", Parameters, 10, 50*ms)
	retrain := add(t, tab, "retrain", RetrainParameters, 10, 400*ms) // its own S is high because of its SLO
	other := add(t, tab, "other", Parameters, 10, 900*ms)
	next := add(t, tab, "next", Parameters, 10, 50*ms)
	acquire(t, tab, 0, params, retrain, other)
	tab.Release([]ID{params, retrain, other}, nil)
	// As types, Parameters have S = 0.6·67.8 + 0.4·333 ms and retrain parameters 0.6·3 + 0.4·400 ms.
	if !(tab.TypeScore(Parameters) > tab.TypeScore(RetrainParameters)) {
		t.Fatalf("types %v and %v", tab.TypeScore(Parameters), tab.TypeScore(RetrainParameters))
	}
	got := acquire(t, tab, ms, next)
	want := []Move{{other, Device, Pinned}, {next, Pageable, Device}}
	if !slices.Equal(got, want) {
		t.Errorf("moves %v, want %v", got, want)
	}
}

// TestTheOldestGoesFirst: by age neither type nor SLO counts, on the device and in pinned memory.
func TestTheOldestGoesFirst(t *testing.T) {
	tab := table(t, 20, 10)
	tab.EvictOldest()
	oldest := add(t, tab, "oldest", RetrainParameters, 10, 0)
	newer := add(t, tab, "newer", Parameters, 10, time.Second)
	third := add(t, tab, "third", RetrainParameters, 10, 0)
	for i, id := range []ID{oldest, newer} {
		acquire(t, tab, time.Duration(i)*ms, id)
		tab.Release([]ID{id}, nil)
	}

	if moves := acquire(t, tab, 2*ms, third); !slices.Equal(moves, []Move{{oldest, Device, Pinned}, {third, Pageable, Device}}) {
		t.Errorf("%v, want the oldest to go, and to pinned memory, which is empty", moves)
	}
	tab.Release([]ID{third}, nil)
	if acquire(t, tab, 3*ms, oldest); tab.Place(newer) == Device || tab.Place(third) != Device {
		t.Errorf("newer %v, third %v, want the one used longest ago to go", tab.Place(newer), tab.Place(third))
	}
}

func TestLowScoresStayPinned(t *testing.T) {
	tab := table(t, 10, 20)
	slos := []time.Duration{30 * ms, 500 * ms, 100 * ms, 200 * ms}
	var ids []ID
	for i, slo := range slos {
		ids = append(ids, add(t, tab, fmt.Sprint(i), Parameters, 10, slo))
	}
	for i, id := range ids { // each evicts the previous one
		acquire(t, tab, time.Duration(i)*ms, id)
		tab.Release([]ID{id}, nil)
	}
	last := add(t, tab, "last", Parameters, 10, ms)
	acquire(t, tab, 10*ms, last)
	want := []Place{Pinned, Pageable, Pinned, Pageable} // 30 and 100 ms are pinned; 500 was moved on, and 200 found no room
	for i, id := range ids {
		if tab.Place(id) != want[i] {
			t.Errorf("SLO %v: place %d, want %d", slos[i], tab.Place(id), want[i])
		}
	}
}

// TestWhatIsLoadedStaysPinned: a content on its way from pinned memory to the device does not make way for what leaves the device, though
// its score is the highest of those pinned.
func TestWhatIsLoadedStaysPinned(t *testing.T) {
	tab := table(t, 10, 10)
	slow := add(t, tab, "slow", Parameters, 10, 900*ms)
	quick := add(t, tab, "quick", Parameters, 10, 50*ms)
	acquire(t, tab, 0, slow)
	tab.Release([]ID{slow}, nil)
	acquire(t, tab, ms, quick)
	tab.Release([]ID{quick}, nil)

	want := []Move{{quick, Device, Pageable}, {slow, Pinned, Device}}
	if got := acquire(t, tab, 2*ms, slow); !slices.Equal(got, want) {
		t.Errorf("moves %v, want %v", got, want)
	}
}

func TestIntermediatesAreFreedParametersKept(t *testing.T) {
	tab := table(t, 100, 0)
	p := add(t, tab, "p", Parameters, 10, ms)
	x := add(t, tab, "x", Intermediates, 10, ms)
	acquire(t, tab, 0, p, x)
	acquire(t, tab, 0, x)
	if moves := tab.Release([]ID{x}, nil); len(moves) != 0 {
		t.Errorf("moves %v while another batch uses it", moves)
	}
	moves := tab.Release([]ID{p, x}, nil)
	if want := []Move{{x, Device, Nowhere}}; !slices.Equal(moves, want) || tab.Place(p) != Device {
		t.Errorf("moves %v, parameters at %d", moves, tab.Place(p))
	}
}

func TestRefusals(t *testing.T) {
	tab := table(t, 20, 0)
	a, b := add(t, tab, "a", Parameters, 10, ms), add(t, tab, "b", Parameters, 15, ms)
	acquire(t, tab, 0, a)
	if _, err := tab.Acquire(0, []ID{b}, nil); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("b beside a in use: %v", err)
	}
	if err := tab.Remove(a); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("removed while in use: %v", err)
	}
	tab.Release([]ID{a}, nil)
	acquire(t, tab, 0, b) // a may be evicted now
	if _, err := tab.Acquire(0, []ID{99}, nil); err == nil || !strings.Contains(err.Error(), "content 99: not known") {
		t.Errorf("an unknown content was acquired: %v", err)
	}
	if _, err := tab.Add(Content{Name: "c", Bytes: 21, Kind: Parameters}); !errors.Is(err, ErrDoesNotFit) {
		t.Errorf("21 of 20 bytes: %v", err)
	}
	for _, alpha := range []float64{0, 1, -1} {
		if _, err := NewTable(1, 0, alpha); err == nil || !strings.Contains(err.Error(), "must be between 0 and 1") {
			t.Errorf("alpha %v was taken: %v", alpha, err)
		}
	}
}

// TestRandomUsesKeepTheInvariants shows R1 to R4 under random uses: bounds hold, contents in use stay, and the order
// is by type and score.
func TestRandomUsesKeepTheInvariants(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		tab := table(t, 1000, 300)
		for i := range 60 {
			add(t, tab, fmt.Sprint(i), Kind(rng.IntN(int(kinds))), 1+rng.Int64N(120), time.Duration(rng.IntN(500))*ms)
		}
		var held [][]ID
		for now := time.Duration(0); now < 300*ms; now += ms {
			ids := []ID{ID(rng.IntN(60)), ID(rng.IntN(60))}
			moves, err := tab.Acquire(now, ids, nil)
			if err != nil && !errors.Is(err, ErrDoesNotFit) {
				t.Fatal(err)
			}
			checkMoves(t, seed, tab, moves)
			if err == nil {
				held = append(held, ids)
			}
			for len(held) > 3 {
				tab.Release(held[0], nil)
				held = held[1:]
			}
			if device, pinned := tab.Used(); device > 1000 || pinned > 300 {
				t.Fatalf("seed %d: %d and %d bytes", seed, device, pinned)
			}
			for _, ids := range held {
				if tab.Place(ids[0]) != Device || tab.Place(ids[1]) != Device {
					t.Fatalf("seed %d: a content in use is not on the device", seed)
				}
			}
		}
	}
}

func checkMoves(t *testing.T, seed uint64, tab *Table, moves []Move) {
	t.Helper()
	for _, m := range moves {
		if m.From != Device {
			continue
		}
		gone := &tab.contents[m.ID]
		for i := range tab.contents {
			e := &tab.contents[i]
			// Unused contents of the same type that stayed must not have a higher score. Their scores have not
			// changed since.
			if e.live && e.users == 0 && e.place == Device && e.Kind == gone.Kind && tab.Score(ID(i)) > tab.Score(m.ID) {
				t.Fatalf("seed %d: %q went with score %v, %q stayed with %v", seed, gone.Name, tab.Score(m.ID), e.Name, tab.Score(ID(i)))
			}
		}
	}
}
