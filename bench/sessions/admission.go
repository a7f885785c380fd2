package sessions

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"time"

	"downbeat.dev/bench/median"
	"downbeat.dev/bench/usage"
	"downbeat.dev/core/app"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sim"
)

// toTheEnd is the length of the referee's run of the admitted sessions.
const toTheEnd = time.Minute

// Judgement counts wrong admissions over random mixes of sessions. A mix is a cluster of 1 to 16 GPUs with sessions
// whose demand is 0.2 to 1.5 times u* of it; admission decides about the last of them. The referee runs all of them
// for a minute of virtual time.
type Judgement struct {
	Mixes    int    `json:"mixes"`
	Seed     uint64 `json:"seed"`
	Admitted int    `json:"admitted"`
	Refused  int    `json:"refused"`
	// Wrongly admitted: some session had less than its share of frames in time. Wrongly refused: none had.
	WronglyAdmitted int `json:"wrongly_admitted"`
	WronglyRefused  int `json:"wrongly_refused"`
	// The same if the last session's frames come at another phase than in the trial.
	UnknownAdmitted int `json:"wrongly_admitted_phase_unknown"`
	UnknownRefused  int `json:"wrongly_refused_phase_unknown"`
	// Time of a decision without the offers of a refusal: its thread's processor time, and the elapsed time on a
	// machine that others may use.
	ProcessorP50MS float64 `json:"processor_p50_ms"`
	ProcessorP99MS float64 `json:"processor_p99_ms"`
	ProcessorMaxMS float64 `json:"processor_max_ms"`
	P50MS          float64 `json:"p50_ms"`
	P99MS          float64 `json:"p99_ms"`
	// Processor time of a refusal with its offers.
	RefusalP50MS                 float64 `json:"refusal_p50_ms"`
	RefusalP99MS                 float64 `json:"refusal_p99_ms"`
	Offering                     int     `json:"refusals_with_an_offer"`
	Offers                       int     `json:"offers"`
	BrokenOffers                 int     `json:"offers_refused_when_asked_for"`
	took, passed, tookWithOffers []time.Duration

	// The shortest of three repetitions of the same decision, to exclude other load on the machine.
	BestP50MS float64 `json:"best_of_three_p50_ms"`
	BestP99MS float64 `json:"best_of_three_p99_ms"`
	BestMaxMS float64 `json:"best_of_three_max_ms"`
	best      []time.Duration
}

// JudgeAdmission compares admission with full simulations over random mixes.
func JudgeAdmission(ctx context.Context, mixes int, seed uint64) (Judgement, error) {
	j := Judgement{Mixes: mixes, Seed: seed}

	// Processor time is per thread; the collector's work on other threads is due to the referee's garbage.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range mixes {
		if err := ctx.Err(); err != nil {
			return j, err
		}
		if err := j.judgeMix(rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
			return j, fmt.Errorf("mix %d of seed %d: %w", i, seed, err)
		}
	}
	j.ProcessorP50MS, j.ProcessorP99MS = percentileMS(j.took, 50), percentileMS(j.took, 99)
	j.ProcessorMaxMS = percentileMS(j.took, 100)
	j.BestP50MS, j.BestP99MS, j.BestMaxMS = percentileMS(j.best, 50), percentileMS(j.best, 99), percentileMS(j.best, 100)
	j.P50MS, j.P99MS = percentileMS(j.passed, 50), percentileMS(j.passed, 99)
	j.RefusalP50MS, j.RefusalP99MS = percentileMS(j.tookWithOffers, 50), percentileMS(j.tookWithOffers, 99)
	return j, nil
}

// judgeMix decides about the last session of one mix, and lets the referee judge.
func (j *Judgement) judgeMix(rng *rand.Rand) error {
	c := app.Capacity{GPUs: 1 + rng.IntN(16), Hop: hop}
	all, err := drawMix(rng, c)
	if err != nil {
		return err
	}

	// The last session asks; the others are open.
	open, last := all[:len(all)-1], all[len(all)-1]

	a, err := j.timeDecision(c, open, last)
	if err != nil {
		return err
	}

	if err := j.askForOffers(c, open, last, a); err != nil {
		return err
	}

	// The referee runs the whole time, with the trial's phase and with another one.
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

// askForOffers asks for the offers of a refusal.
func (j *Judgement) askForOffers(c app.Capacity, open []app.Promise, last app.Promise, a plan.Admission) error {
	slower, later := last, last
	slower.Rate, later.Latency = a.OfferRate, a.OfferLatency
	j.Offering += count1(slower.Rate > 0 || later.Latency > 0)

	for _, p := range []app.Promise{slower, later} {
		if p.Rate == 0 || p.Latency == 0 {
			continue // no such offer
		}
		_, again, err := app.Admit(c, open, p, sim.Trial)
		if err != nil {
			return err
		}
		j.Offers++
		j.BrokenOffers += count1(!again.Admitted)
	}
	return nil
}

// timeDecision decides about a session three times in the same state. It records the time of the first decision, with
// its offers, and the shortest time.
func (j *Judgement) timeDecision(c app.Capacity, open []app.Promise, last app.Promise) (a plan.Admission, err error) {
	var shortest time.Duration
	for i := range 3 {
		// The first trial is the decision; later ones are for offers. Without a trial, demand alone decides.
		began, before := time.Now(), usage.ThreadTime()
		var took, passed time.Duration
		decide := func() {
			if took == 0 {
				took, passed = usage.ThreadTime()-before, time.Since(began)
			}
		}
		_, answer, err := app.Admit(c, open, last, func(c app.Capacity, all []app.Promise) bool {
			if i > 0 && took > 0 {
				return false // the time of offers is already known
			}
			defer decide()
			return sim.Trial(c, all)
		})
		if err != nil {
			return a, err
		}
		decide()

		if i > 0 {
			shortest = min(shortest, took)
			continue
		}
		a, shortest = answer, took
		j.took, j.passed = append(j.took, took), append(j.passed, passed)
		if !a.Admitted {
			j.tookWithOffers = append(j.tookWithOffers, usage.ThreadTime()-before)
		}
	}
	j.best = append(j.best, shortest)
	return a, nil
}

func count1(is bool) int {
	if is {
		return 1
	}
	return 0
}

// drawMix draws sessions: Rim's applications at any of their qualities and rates, with latencies around the stated
// ones.
func drawMix(rng *rand.Rand, c app.Capacity) ([]app.Promise, error) {
	// Demand from a fifth of the target to half above it, so that both answers occur.
	demand := (0.2 + 1.3*rng.Float64()) * plan.DefaultTargets().At(c.GPUs) * float64(c.GPUs)
	roomy := c
	roomy.GPUs = 1000

	var all []app.Promise
	for demand > 0 {
		p, err := drawPromise(rng)
		if err != nil {
			return nil, err
		}

		// On a cluster with unlimited room, Admit finds the offsets, unless the latency is too short for any.
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

// percentileMS returns a percentile of times, in ms; 0 for no times.
func percentileMS(all []time.Duration, percent float64) float64 {
	return median.Percentile(all, percent).Seconds() * 1e3
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
		"a decision: p50 %.2f ms, p99 %.2f ms, longest %.2f ms of a processor; p50 %.2f ms, p99 %.2f ms passed\n"+
		"the shortest of three times: p50 %.2f ms, p99 %.2f ms, longest %.2f ms of a processor\n"+
		"a refusal with its offers: p50 %.2f ms, p99 %.2f ms of a processor; %d have any, %d of %d offers were refused when asked for\n", j.Mixes, j.Seed, j.Admitted, j.Refused, toTheEnd,
		of(j.WronglyAdmitted), of(j.WronglyRefused), of(j.UnknownAdmitted), of(j.UnknownRefused),
		j.ProcessorP50MS, j.ProcessorP99MS, j.ProcessorMaxMS, j.P50MS, j.P99MS, j.BestP50MS, j.BestP99MS, j.BestMaxMS, j.RefusalP50MS, j.RefusalP99MS, j.Offering, j.BrokenOffers, j.Offers)
	return err
}
