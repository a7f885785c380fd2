package joint

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sim"
)

// hop is the latency between a stage and the next, and between the last and the client.
const hop = 500 * time.Microsecond

// stream is one session that asks to be served.
type stream struct {
	app   int
	fps   float64
	phase float64 // share of its period
}

// trace is all requests and sessions at one load.
type trace struct {
	services []service
	apps     []application
	span     time.Duration
	seed     uint64
	times    float64       // multiple of the unit load
	bought   float64       // share of GPU time that learners buy
	warm     time.Duration // requests before it are served but not counted
	requests []arrivals.Arrival
	streams  []stream // in the order in which they ask
	offsets  [][]time.Duration
	rests    [][]time.Duration // by application and module: the shortest time that lies behind it
}

// The shape of the families' load: a wave per family, and a burst of five seconds that visits the families in turn.
const (
	period     = 50 * time.Second
	waveHeight = 0.25
	burstFrom  = 20
	burstUntil = 25
	burstTimes = 1.5
)

// drawTrace draws the trace of a seed at a multiple of the unit load.
func drawTrace(seed uint64, times float64, span time.Duration) (*trace, error) {
	t := &trace{span: span, seed: seed, times: times}
	var err error
	if t.services, t.apps, err = listServices(); err != nil {
		return nil, err
	}

	t.drawRequests()
	t.drawStreams()
	return t, t.splitLatencies()
}

// drawRequests draws Poisson arrivals for each family and second, as in Proteus's traces.
func (t *trace) drawRequests() {
	for f := range families {
		rng := rand.New(rand.NewPCG(t.seed, uint64(100+f)))
		for second := range int(t.span / time.Second) {
			from := time.Duration(second) * time.Second
			for range drawPoisson(rng, t.familyRate(f, second)) {
				t.requests = append(t.requests, arrivals.Arrival{At: from + time.Duration(rng.Float64()*1e9), Model: int32(f)})
			}
		}
	}
	slices.SortStableFunc(t.requests, func(a, b arrivals.Arrival) int { return cmp.Compare(a.At, b.At) })
}

// familyRate returns a family's rate in a second, in requests/s.
func (t *trace) familyRate(f, second int) float64 {
	in := float64(second%int(period/time.Second)) / period.Seconds()
	rate := t.times * t.services[f].rate * (1 + waveHeight*math.Sin(2*math.Pi*(in+float64(f)/float64(len(families)))))

	// Each period has the burst in another family.
	turn := second / int(period/time.Second)
	at := second % int(period/time.Second)
	if at >= burstFrom && at < burstUntil && turn%len(families) == f {
		rate *= burstTimes
	}
	return rate
}

// drawPoisson draws a count of the given mean, by gaps.
func drawPoisson(rng *rand.Rand, mean float64) (n int) {
	for at := rng.ExpFloat64(); at < mean; at += rng.ExpFloat64() {
		n++
	}
	return n
}

// drawStreams draws the sessions: the applications in turn, at Rim's frame rates.
func (t *trace) drawStreams() {
	rng := rand.New(rand.NewPCG(t.seed, 99))
	left := make([]int, len(t.apps))
	for k := range t.apps {
		left[k] = int(math.Round(t.times * float64(t.apps[k].sessions)))
	}

	// The application with the most remaining sessions asks next, so that every prefix of the list has the same mix.
	for {
		next, most := -1, 0.0
		for k, n := range left {
			if share := float64(n) / float64(t.apps[k].sessions); share > most {
				next, most = k, share
			}
		}
		if next < 0 {
			return
		}

		// Draw rates and phases in this order, so that a higher load begins with a lower one's sessions.
		left[next]--
		t.streams = append(t.streams, stream{app: next, fps: []float64{5, 6, 9, 10}[rng.IntN(4)], phase: rng.Float64()})
	}
}

// splitShare is the part of a latency that is divided among the stages; the rest is common to all (decision 0142).
const splitShare = 0.6

// splitLatencies divides the applications' latencies, for the best networks on the older GPUs. Every policy uses
// these shares.
func (t *trace) splitLatencies() error {
	t.offsets, t.rests = make([][]time.Duration, len(t.apps)), make([][]time.Duration, len(t.apps))
	for k := range t.apps {
		a := &t.apps[k]
		described := plan.Application{Hop: hop}
		for j, m := range a.modules {
			var after []int32
			for _, before := range m.after {
				after = append(after, int32(2*before+1))
			}
			described.Stages = append(described.Stages, plan.Stage{Fixed: m.fixed, After: after},
				plan.Stage{Profile: t.services[a.first+j].networks[0].profiles[0], FanOut: float64(m.fanOut), After: []int32{int32(2 * j)}})
		}

		b, err := plan.SplitLatency(described, max(1, t.frameRate(k)), time.Duration(splitShare*float64(a.latency)))
		if err != nil {
			return err
		}
		for j := range a.modules {
			offset := time.Duration(float64(b.Offset[2*j+1]) / splitShare)
			t.offsets[k] = append(t.offsets[k], offset)
			t.rests[k] = append(t.rests[k], t.leastBehind(a, j))

			// A stage's SLO is its own share, for plans that know no frames.
			t.services[a.first+j].slo = time.Duration(float64(b.Budget[2*j+1]) / splitShare)
		}
	}
	return nil
}

// frameRate returns the frames/s of all sessions of an application.
func (t *trace) frameRate(app int) (rate float64) {
	for _, s := range t.streams {
		if s.app == app {
			rate += s.fps
		}
	}
	return rate
}

// leastBehind returns the shortest time that a frame takes after a module.
func (t *trace) leastBehind(a *application, module int) time.Duration {
	longest := time.Duration(0)
	for k, m := range a.modules {
		if slices.Contains(m.after, module) {
			light := t.services[a.first+k].networks
			longest = max(longest, m.fixed+hop+light[len(light)-1].profiles[1].Exec(1)+t.leastBehind(a, k))
		}
	}
	return max(longest, hop)
}

// rates returns the requests/s of every service when some streams are served.
func (t *trace) rates(streams []stream) []float64 {
	out := make([]float64, len(t.services))
	for f := range families {
		out[f] = t.times * t.services[f].rate
	}
	for _, s := range streams {
		a := &t.apps[s.app]
		for j, m := range a.modules {
			out[a.first+j] += s.fps * float64(m.fanOut)
		}
	}
	return out
}

// describeSessions returns streams as sessions of a World. again means that a dropped request is made again if time
// is left.
func (t *trace) describeSessions(streams []stream, again bool) []sim.Session {
	var all []sim.Session
	for _, s := range streams {
		a := &t.apps[s.app]
		every := time.Duration(1e9 / s.fps)
		session := sim.Session{Latency: sim.Duration(a.latency), Period: sim.Duration(every), First: sim.Time(s.phase * float64(every)), Last: sim.Time(t.span)}

		// A module is two stages: its processor time, then its requests.
		for j, m := range a.modules {
			var after []int32
			for _, before := range m.after {
				after = append(after, int32(2*before+1))
			}
			asked := sim.Stage{Model: int32(a.first + j), FanOut: m.fanOut, After: []int32{int32(2 * j)}, Offset: sim.Duration(t.offsets[s.app][j])}
			if again {
				asked.Rest = sim.Duration(t.rests[s.app][j])
			}
			session.Stages = append(session.Stages, sim.Stage{Model: sim.Hook, Fixed: sim.Duration(m.fixed), After: after}, asked)
		}
		all = append(all, session)
	}
	return all
}
