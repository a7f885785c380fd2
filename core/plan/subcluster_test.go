package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestGPUsOfOneKindAreOneSubCluster shows that measurements do not separate GPUs of one kind, and do separate GPUs of
// unknown kind if they differ by more than repeated measurements.
func TestGPUsOfOneKindAreOneSubCluster(t *testing.T) {
	gpu := func(p Pool, table ...time.Duration) PooledGPU {
		return PooledGPU{Pool: p, Models: []uint32{3}, Profiles: [][]time.Duration{table}}
	}
	for _, x := range []struct {
		a, b PooledGPU
		want bool
	}{
		{gpu(Pool{Kind: "h200"}, 100), gpu(Pool{Kind: "h200"}, 300), true},
		{gpu(Pool{Kind: "h200"}, 100), gpu(Pool{Kind: "h100"}, 100), false},
		{gpu(Pool{Kind: "h200", Memory: 141}, 100), gpu(Pool{Kind: "h200", Memory: 18}, 100), false},
		{gpu(Pool{Kind: "h200", Name: "night"}, 100), gpu(Pool{Kind: "h200"}, 100), false},
		{gpu(Pool{}, 100, 200), gpu(Pool{}, 114, 180), true},
		{gpu(Pool{}, 100, 200), gpu(Pool{}, 116, 200), false},
		{gpu(Pool{}, 100, 200), gpu(Pool{}, 100, 170), false},
		{gpu(Pool{}, 100, 200), gpu(Pool{}, 100), false},
		{gpu(Pool{}, 100), gpu(Pool{Kind: "h200"}, 100), false},
	} {
		if x.a.MayShare(&x.b) != x.want || x.b.MayShare(&x.a) != x.want {
			t.Errorf("%+v and %+v: want %v", x.a, x.b, x.want)
		}
	}
	a, b := gpu(Pool{Kind: "h200"}), gpu(Pool{Kind: "h200"})
	if b.Models = []uint32{3, 4}; a.MayShare(&b) {
		t.Error("GPUs that offer other models are one sub-cluster")
	}
}

// TestAGPUJoinsItsOwnSubClusterFirst shows the order: its own, then one of its pool with GPUs, then one that all GPUs
// have left.
func TestAGPUJoinsItsOwnSubClusterFirst(t *testing.T) {
	g := PooledGPU{Pool: Pool{Kind: "h200"}, Models: []uint32{1}}
	state := func(kind string, gpus int) SubClusterState {
		return SubClusterState{PooledGPU{Pool: Pool{Kind: kind}, Models: []uint32{1}}, gpus}
	}
	for _, x := range []struct {
		own  int
		all  []SubClusterState
		want int
	}{
		{Nowhere, nil, Nowhere},
		{Nowhere, []SubClusterState{state("t4", 2)}, Nowhere},
		{Nowhere, []SubClusterState{state("h200", 0), state("t4", 2), state("h200", 1), state("h200", 9)}, 2},
		{3, []SubClusterState{state("h200", 0), state("t4", 2), state("h200", 1), state("h200", 1)}, 3},
		{1, []SubClusterState{state("h200", 0), state("t4", 2), state("t4", 0)}, 2},
	} {
		if got := SubClusterFor(x.own, &g, x.all); got != x.want {
			t.Errorf("from %d among %+v: %d, want %d", x.own, x.all, got, x.want)
		}
	}
}

func TestKindProfile(t *testing.T) {
	for _, x := range []struct {
		kind string
		all  []MeasuredProfile
		want string
	}{
		{"h200", nil, "[]"},
		{"h200", []MeasuredProfile{{[]time.Duration{100, 200}, 8}}, "[100ns 200ns]"},
		// The slowest at each size, if they differ no more than repeated measurements.
		{"h200", []MeasuredProfile{{[]time.Duration{100, 200, 300}, 1}, {[]time.Duration{110, 190}, 1}}, "[110ns 200ns]"},
		// A measurement at a bad moment does not make the plan slow for all GPUs.
		{"h200", []MeasuredProfile{{[]time.Duration{300, 600}, 1}, {[]time.Duration{100, 200}, 1}}, "[115ns 230ns]"},
		// If most GPUs are that slow, the plan of the kind is too.
		{"h200", []MeasuredProfile{{[]time.Duration{100, 200}, 1}, {[]time.Duration{300, 600}, 4}}, "[300ns 600ns]"},
		// Without a kind, nothing says that the slowest could be as fast as the others.
		{"", []MeasuredProfile{{[]time.Duration{100, 200}, 4}, {[]time.Duration{130, 230}, 1}}, "[130ns 230ns]"},
	} {
		if got := KindProfile(x.kind, x.all); fmt.Sprint(got) != x.want {
			t.Errorf("%q, %v: %v, want %s", x.kind, x.all, got, x.want)
		}
	}
}

// TestKindProfilesAreDeterministic shows that the profile does not depend on the order of backends, never falls as
// batches grow, and lies between the fastest and the slowest GPU. The input is not changed.
func TestKindProfilesAreDeterministic(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 70))
		all := make([]MeasuredProfile, 1+rng.IntN(6))
		for i := range all {
			all[i].GPUs = 1 + rng.IntN(8)
			at := time.Duration(0)
			for range 1 + rng.IntN(8) {
				at += time.Duration(1 + rng.IntN(1000))
				all[i].Table = append(all[i].Table, at)
			}
		}
		before := fmt.Sprint(all)
		kind := []string{"h200", ""}[seed%2]
		got := KindProfile(kind, all)
		if fmt.Sprint(all) != before {
			t.Fatalf("seed %d: %s became %v", seed, before, all)
		}
		if !slices.IsSorted(got) {
			t.Fatalf("seed %d: %v", seed, got)
		}
		for k := range got {
			at := func(x, y MeasuredProfile) int { return int(x.Table[k] - y.Table[k]) }
			if least, most := slices.MinFunc(all, at).Table[k], slices.MaxFunc(all, at).Table[k]; got[k] < least || got[k] > most {
				t.Fatalf("seed %d: %v at %d is not from %v to %v", seed, got[k], k+1, least, most)
			}
		}
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if again := KindProfile(kind, all); !slices.Equal(again, got) {
			t.Fatalf("seed %d: %v, in another order %v", seed, got, again)
		}
	}
}
