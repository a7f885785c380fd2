package sessions

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"downbeat.dev/core/app"
	"downbeat.dev/core/sim"
)

// The time at which a backend is killed, and how long it is missing before any session is evicted.
const (
	killAt   = 15 * time.Second
	patience = 2 * time.Second
)

// Loss is the outcome of sessions when a backend is killed. Each mix is a cluster of 2 to 16 backends with 1 or 2
// GPUs each and as many sessions as admission accepts. One backend is killed 15 s into a minute of virtual time and
// does not return.
type Loss struct {
	Mixes int    `json:"mixes"`
	Seed  uint64 `json:"seed"`
	// With one spare backend, the default of admission.
	Spared Survival `json:"spared"`
	// Without a spare: admission has filled every GPU.
	Full Survival `json:"full"`
}

// Survival counts sessions through the minute.
type Survival struct {
	Sessions  int     `json:"sessions"`
	Evicted   int     `json:"evicted"`
	Broken    int     `json:"broken"` // not evicted, with less than 99 % of the minute's frames in time
	FinishPct float64 `json:"finish_pct"`
	FinishMin float64 `json:"finish_pct_min"` // of the worst session
	frames    int
	inTime    int
}

// JudgeLoss kills a backend of each mix.
func JudgeLoss(ctx context.Context, mixes int, seed uint64) (Loss, error) {
	l := Loss{Mixes: mixes, Seed: seed, Spared: Survival{FinishMin: 100}, Full: Survival{FinishMin: 100}}
	for i := range mixes {
		if err := ctx.Err(); err != nil {
			return l, err
		}

		// Clusters of one size, filled once with a backend to spare and once without.
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		each := 1 + rng.IntN(2)
		gpus := each * (2 + rng.IntN(15))

		err := l.Spared.surviveLoss(rng, gpus, each, each)
		if err == nil {
			err = l.Full.surviveLoss(rng, gpus, each, 0)
		}
		if err != nil {
			return l, fmt.Errorf("mix %d of seed %d: %w", i, seed, err)
		}
	}
	l.Spared.sumUp()
	l.Full.sumUp()
	return l, nil
}

// surviveLoss fills a cluster and kills its first backend, with each GPUs.
func (s *Survival) surviveLoss(rng *rand.Rand, gpus, each, spare int) error {
	c := app.Capacity{GPUs: gpus, Spare: spare, Hop: hop}
	open, err := fillCluster(rng, c)
	if err != nil {
		return err
	}
	s.Sessions += len(open)

	// Evictions are decided once the backend counts as missing; until then all sessions share the rest.
	left := c
	left.GPUs, left.Spare = gpus-each, 0
	ends := make([]time.Duration, len(open))
	remains := app.Readmit(left, open, sim.Trial)
	for i, r := range remains {
		ends[i] = toTheEnd
		if r.Rate == 0 {
			ends[i] = killAt + patience
		}
	}

	var losses []sim.Loss
	for g := range each {
		losses = append(losses, sim.Loss{At: sim.Time(killAt), GPU: int32(g), Away: math.MaxInt64 / 4, Kill: true})
	}

	for i, k := range sim.RunPromises(c, open, ends, losses) {
		if remains[i].Rate == 0 {
			s.Evicted++
			continue
		}
		s.frames, s.inTime = s.frames+k.Frames, s.inTime+k.InTime
		share := 100 * float64(k.InTime) / float64(max(k.Frames, 1))
		s.FinishMin = min(s.FinishMin, share)
		s.Broken += count1(share < 99)
	}
	return nil
}

// fillCluster admits sessions until three were refused.
func fillCluster(rng *rand.Rand, c app.Capacity) (open []app.Promise, err error) {
	for refused := 0; refused < 3; {
		p, err := drawPromise(rng)
		if err != nil {
			return nil, err
		}

		// A smaller session may still fit after a refusal.
		p, a, err := app.Admit(c, open, p, sim.Trial)
		if err != nil {
			return nil, err
		}
		if a.Admitted {
			open = append(open, p)
		} else {
			refused++
		}
	}
	return open, nil
}

func (s *Survival) sumUp() { s.FinishPct = 100 * float64(s.inTime) / float64(max(s.frames, 1)) }

// Write prints the outcomes, for people or as a line of JSON.
func (l *Loss) Write(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(l)
	}
	if _, err := fmt.Fprintf(w, "%d random clusters full of sessions, seed %d; one backend is killed %v into %v of virtual time:\n", l.Mixes, l.Seed, killAt, toTheEnd); err != nil {
		return err
	}
	for _, row := range []struct {
		name string
		s    *Survival
	}{{"admitted with a backend to spare", &l.Spared}, {"admitted on all backends", &l.Full}} {
		if _, err := fmt.Fprintf(w, "%-33s %d sessions: %d evicted, %d below 99 %%; %.3f %% of the frames of those that stayed in time, the worst session %.2f %%\n",
			row.name+":", row.s.Sessions, row.s.Evicted, row.s.Broken, row.s.FinishPct, row.s.FinishMin); err != nil {
			return err
		}
	}
	return nil
}
