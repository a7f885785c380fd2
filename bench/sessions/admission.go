package sessions

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"downbeat.dev/bench/usage"
	"downbeat.dev/core/app"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sim"
)

// toTheEnd is how long the referee runs what admission let in.
const toTheEnd = time.Minute

// Judgement is how often admission was wrong over random mixes of sessions. A mix is a cluster of 1 to 16 GPUs and
// sessions whose demand is 0.2 to 1.5 times u* of it; admission is asked for the last of them. The referee runs all of them for a
// minute of virtual time.
type Judgement struct {
	Mixes    int    `json:"mixes"`
	Seed     uint64 `json:"seed"`
	Admitted int    `json:"admitted"`
	Refused  int    `json:"refused"`
	// Wrongly admitted: a session had less than its share of frames in time. Wrongly refused: none had.
	WronglyAdmitted int `json:"wrongly_admitted"`
	WronglyRefused  int `json:"wrongly_refused"`
	// The same where the last session's frames come at another time of its period than the trial was told.
	UnknownAdmitted int `json:"wrongly_admitted_phase_unknown"`
	UnknownRefused  int `json:"wrongly_refused_phase_unknown"`
	// Of a decision, without the offers of a refusal: processor time, and the time that passed on a machine that others may use.
	ProcessorP50MS float64 `json:"processor_p50_ms"`
	ProcessorP99MS float64 `json:"processor_p99_ms"`
	P50MS          float64 `json:"p50_ms"`
	P99MS          float64 `json:"p99_ms"`
	took, passed   []time.Duration
}

// JudgeAdmission compares admission with simulations to the end over random mixes.
func JudgeAdmission(ctx context.Context, mixes int, seed uint64) (Judgement, error) {
	j := Judgement{Mixes: mixes, Seed: seed}
	for i := range mixes {
		if err := ctx.Err(); err != nil {
			return j, err
		}
		if err := j.judgeMix(rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
			return j, fmt.Errorf("mix %d of seed %d: %w", i, seed, err)
		}
	}
	j.ProcessorP50MS, j.ProcessorP99MS = percentileMS(j.took, 50), percentileMS(j.took, 99)
	j.P50MS, j.P99MS = percentileMS(j.passed, 50), percentileMS(j.passed, 99)
	return j, nil
}

// judgeMix lets the last session of one mix ask, and the referee look.
func (j *Judgement) judgeMix(rng *rand.Rand) error {
	c := app.Capacity{GPUs: 1 + rng.IntN(16), Hop: hop}
	all, err := drawMix(rng, c)
	if err != nil {
		return err
	}

	// The last one asks; the others are open.
	open, last := all[:len(all)-1], all[len(all)-1]

	// The first trial is the decision; those after it are for offers.
	began, before, decided := time.Now(), usage.ProcessorTime(), false
	_, a, err := app.Admit(c, open, last, func(c app.Capacity, all []app.Promise) bool {
		passed := sim.Trial(c, all)
		if !decided {
			decided = true
			j.took, j.passed = append(j.took, usage.ProcessorTime()-before), append(j.passed, time.Since(began))
		}
		return passed
	})
	if err != nil {
		return err
	}

	// The judge is a run over the whole time, with the phase that the trial saw and with one that it did not.
	kept := sim.KeepsPromises(c, all, toTheEnd)
	last.Phase = drawPhase(rng, &last)
	otherwise := sim.KeepsPromises(c, append(open[:len(open):len(open)], last), toTheEnd)

	if a.Admitted {
		j.Admitted++
		j.WronglyAdmitted += count1(!kept)
		j.UnknownAdmitted += count1(!otherwise)
	} else {
		j.Refused++
		j.WronglyRefused += count1(kept)
		j.UnknownRefused += count1(otherwise)
	}
	return nil
}

func count1(is bool) int {
	if is {
		return 1
	}
	return 0
}

// drawMix draws sessions: Rim's applications at any of their qualities and rates, with latencies around the stated.
func drawMix(rng *rand.Rand, c app.Capacity) ([]app.Promise, error) {
	// From a fifth of what the target allows to half as much again, so that both answers come up.
	demand := (0.2 + 1.3*rng.Float64()) * plan.DefaultTargets().At(c.GPUs) * float64(c.GPUs)
	roomy := c
	roomy.GPUs = 1000

	var all []app.Promise
	for demand > 0 {
		p, err := drawPromise(rng)
		if err != nil {
			return nil, err
		}

		// On a cluster with room for everybody the offsets are found, or the latency is too short for any.
		p, admission, err := app.Admit(roomy, all, p, nil)
		if err != nil {
			return nil, err
		}
		if admission.Admitted {
			all = append(all, p)
			demand -= p.Demand
		}
	}
	return all, nil
}

// drawPromise draws a session that asks.
func drawPromise(rng *rand.Rand) (app.Promise, error) {
	apps := Applications()
	a := &apps[rng.IntN(len(apps))]
	g, profiles, err := graphOf(a, rng.IntN(len(a.Qualities)))
	if err != nil {
		return app.Promise{}, err
	}

	p := app.Promise{Graph: g, Profiles: profiles, Rate: []float64{5, 6, 9, 10}[rng.IntN(4)],
		Latency: time.Duration(float64(a.Latency) * (0.7 + 0.8*rng.Float64()))}
	p.Phase = drawPhase(rng, &p)
	return p, nil
}

func drawPhase(rng *rand.Rand, p *app.Promise) time.Duration {
	return time.Duration(rng.Float64() * float64(p.Period()))
}

// percentileMS is a percentile of times, in ms; 0 of none.
func percentileMS(all []time.Duration, percent int) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)*percent/100].Seconds() * 1e3
}

// Write prints a judgement, for people or as a line of JSON.
func (j *Judgement) Write(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(j)
	}
	of := func(n int) float64 { return percentOf(n, max(j.Mixes, 1)) }
	_, err := fmt.Fprintf(w, "%d random mixes, seed %d: %d admitted, %d refused; against %v of virtual time:\n"+
		"phase known:   wrongly admitted %.2f %%, wrongly refused %.2f %%\n"+
		"phase unknown: wrongly admitted %.2f %%, wrongly refused %.2f %%\n"+
		"a decision: p50 %.2f ms, p99 %.2f ms of a processor; %.2f ms, %.2f ms passed\n", j.Mixes, j.Seed, j.Admitted, j.Refused, toTheEnd,
		of(j.WronglyAdmitted), of(j.WronglyRefused), of(j.UnknownAdmitted), of(j.UnknownRefused),
		j.ProcessorP50MS, j.ProcessorP99MS, j.P50MS, j.P99MS)
	return err
}
