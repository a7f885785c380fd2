package drift

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"

	"downbeat.dev/cuda/residency"
)

// memorySetting is the setting of the figures about GPU memory. The request rates are ours: the paper has none.
type memorySetting struct {
	gpu       ratedGPU
	apps      int
	frames    float64       // per second, of all applications; the k-th has 1/k of the first one's
	session   time.Duration // the paper's
	sloLeast  time.Duration // SLOs are spread evenly from here
	sloMost   time.Duration
	planned   float64       // share of the GPU's time for answers and retraining if everything were on the device
	resident  float64       // share of all parameters on the device, beside the largest batch's intermediates
	pinned    float64       // likewise, in pinned memory
	alpha     float64       // of the eviction score
	apart     bool          // variant M1: each request runs its layers on its own
	byAge     bool          // variant M2: what was used longest ago is evicted
	periods   int           // of the drift schedule
	period    time.Duration // instead of the paper's 50 s: the state of memory is stable after some jobs
	batch     int           // most frames of a batch of answers
	networks  []string
	seed      uint64
	directory string
}

func defaultMemory(s Setting) memorySetting {
	return memorySetting{gpu: v100, apps: 8, frames: 400, session: 5 * time.Millisecond, sloLeast: 400 * time.Millisecond, sloMost: 600 * time.Millisecond, planned: 0.8, resident: 0.5, pinned: 0.25,
		alpha: 0.4, periods: 6, period: 500 * time.Millisecond, batch: batchMax, networks: []string{"detector-l", "vehicle-l", "activity-l"}, seed: s.Seed, directory: s.Models}
}

// memoryApp is one application: a detector, and two networks that follow it and are retrained after a drift.
type memoryApp struct {
	rate   float64
	slo    time.Duration
	params [][]residency.ID // by network and layer; only layers with parameters
	levels [][]float64      // darkness by network and period; none for the detector
	trains []int            // networks that drifted in this period
	turn   int
	earned time.Duration // time for retraining
	until  time.Duration // when earned was last updated
}

// memoryJob is an application's frames of one session.
type memoryJob struct {
	app, frames       int
	release, deadline time.Duration
}

// memoryRun is one simulation.
type memoryRun struct {
	memorySetting
	g        *memoryGPU
	networks []*layeredNetwork
	all      []*memoryApp
	jobs     []memoryJob
	share    float64 // of the GPU's time, for the retraining of one application

	asked, finished, steps int
}

// simulateMemory runs jobs on one GPU whose memory is too small for all parameters.
func simulateMemory(s memorySetting) (*memoryRun, error) {
	r := &memoryRun{memorySetting: s}
	if err := r.openRun(); err != nil {
		return nil, err
	}

	jobs := r.jobs
	var ready deadlineOrder
	period := -1

	// A job's share of the GPU is chosen to end with its SLO, so run the jobs in order of their deadlines.
	for len(jobs) > 0 || len(ready) > 0 {
		if len(ready) == 0 {
			r.g.now = max(r.g.now, jobs[0].release)
		}
		for len(jobs) > 0 && jobs[0].release <= r.g.now {
			heap.Push(&ready, jobs[0])
			jobs = jobs[1:]
		}

		if k := min(int(r.g.now/r.period), r.periods-1); k > period {
			period = k
			if err := r.beginPeriod(period); err != nil {
				return nil, err
			}
		}
		if err := r.runJob(heap.Pop(&ready).(memoryJob)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// beginPeriod determines the networks that drift in a period and are retrained. Their parameters get the kind for
// retraining.
func (r *memoryRun) beginPeriod(period int) error {
	training := 0
	for _, app := range r.all {
		app.trains = nil

		// A network that drifts in this period is retrained in it.
		for n, levels := range app.levels {
			kind := residency.Parameters
			if period > 0 && levels != nil && levels[period] != levels[period-1] {
				kind, app.trains = residency.RetrainParameters, append(app.trains, n)
			}

			// A content's kind is fixed, so parameters of another kind are added anew.
			if r.kindOf(app, n) != kind {
				if err := r.addParameters(app, n, kind); err != nil {
					return err
				}
			}
		}

		if len(app.trains) > 0 {
			training++
		}
		app.earned, app.until = 0, r.g.now
	}

	// Divide the part of the planned share that answers leave evenly.
	answer, err := r.answersTime(1)
	if err != nil {
		return err
	}

	busy := 0.0
	for _, app := range r.all {
		busy += app.rate * answer.Seconds()
	}
	r.share = max(0, r.planned-busy) / float64(max(1, training))
	return nil
}

func (r *memoryRun) kindOf(app *memoryApp, network int) residency.Kind {
	for _, id := range app.params[network] {
		if id != noContent {
			return r.g.known[id].kind
		}
	}
	return residency.Parameters
}

// answersTime returns the time of a job of some frames with everything on the device.
func (r *memoryRun) answersTime(frames int) (sum time.Duration, err error) {
	for _, n := range r.networks {
		for left := frames; left > 0; left -= r.batch {
			work, err := n.batch(min(left, r.batch))
			if err != nil {
				return 0, err
			}
			sum += work.took()
		}
	}
	return sum, nil
}

// drawJobs draws the frames of all applications and groups those of a session.
func (r *memoryRun) drawJobs() (jobs []memoryJob) {
	end := time.Duration(r.periods) * r.period
	for k, app := range r.all {
		rng := rand.New(rand.NewPCG(r.seed, 900+uint64(k)))
		count := map[int]int{}
		for at := 0.0; ; {
			at += rng.ExpFloat64() / app.rate
			if at >= end.Seconds() {
				break
			}
			count[int(at/r.session.Seconds())]++
		}
		for session, n := range count {
			begin := time.Duration(session) * r.session
			jobs = append(jobs, memoryJob{k, n, begin + r.session, begin + app.slo})
		}
	}

	slices.SortFunc(jobs, func(a, b memoryJob) int { return cmp.Or(cmp.Compare(a.release, b.release), cmp.Compare(a.app, b.app)) })
	return jobs
}

// deadlineOrder is a heap of jobs.
type deadlineOrder []memoryJob

func (d deadlineOrder) Len() int { return len(d) }
func (d deadlineOrder) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(d[i].deadline, d[j].deadline), cmp.Compare(d[i].app, d[j].app)) < 0
}
func (d deadlineOrder) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *deadlineOrder) Push(x any)   { *d = append(*d, x.(memoryJob)) }
func (d *deadlineOrder) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
