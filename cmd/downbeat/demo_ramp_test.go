//go:build linux

package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
)

// TestHeaviestFamily: the family whose best variant carries least, if a lighter one carries enough more; models by
// themselves, and variants without a profile, are passed over.
func TestHeaviestFamily(t *testing.T) {
	const ms = time.Millisecond
	hello := wire.BackendHello{GPUs: []string{"a", "b"}}
	add := func(family, name string, accuracy float64, table ...time.Duration) {
		hello.Models = append(hello.Models, wire.BackendModel{Profile: table,
			Info: model.Info{Name: name, Family: family, Accuracy: accuracy, SLO: int64(40 * ms)}})
	}
	add("", "slowest", 0, 100*ms)
	if _, ok := heaviestFamily(&hello); ok {
		t.Error("found a family where there is none")
	}
	add("alike", "alike-l", 0.9, 50*ms)
	add("alike", "alike-s", 0.8, 25*ms)
	add("quick", "quick-l", 0.9, 5*ms)
	add("quick", "quick-s", 0.8, ms)
	add("slow", "slow-s", 0.8, 2*ms)
	add("slow", "slow-l", 0.9, 15*ms, 20*ms, 30*ms) // a batch of three leaves too little time to wait
	add("slow", "slow-xl", 0.99)
	f, ok := heaviestFamily(&hello)
	if want := (ramped{name: "slow", best: "slow-l", accurate: 200, most: 1000}); !ok || f != want {
		t.Errorf("%+v %v, want %+v", f, ok, want)
	}
}

// TestMeanBatch: batches are told apart from those that were there before.
func TestMeanBatch(t *testing.T) {
	before, now := []uint64{0, 10, 1}, []uint64{0, 11, 1, 0, 3}
	if got := meanBatch(now, before); got != (1+3*4)/4.0 {
		t.Errorf("a mean of %v, want 3.25", got)
	}
	if all, none := meanBatch(now, nil), meanBatch(now, now); all != (11+2+12)/15.0 || none != 0 {
		t.Errorf("of all %v, of none %v", all, none)
	}
}

// TestTally: answers are counted by variant, failures are not.
func TestTally(t *testing.T) {
	c := &tally{answers: map[string]int{}}
	if got := c.String(); got != "–\tnobody" {
		t.Errorf("%q", got)
	}
	for _, r := range []frontend.Result{{Model: "v-s", Accuracy: 0.8}, {Model: "v-l", Accuracy: 0.9}, {Model: "v-l", Accuracy: 0.9}, {}} {
		do := c.count(func(context.Context, frontend.Request) (frontend.Result, error) {
			if r.Model == "" {
				return r, errors.New("dropped")
			}
			return r, nil
		})
		if got, err := do(t.Context(), frontend.Request{}); got.Model != r.Model || (err == nil) != (r.Model != "") {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if got, want := c.String(), "0.8667\tv-l 67 %, v-s 33 %"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
