package symphony

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
)

// roundRobin is table 2: requests with exponential gaps reach random frontends, each of which distributes them over
// backends in turn. The number of requests per backend and window should not vary.
type roundRobin struct {
	rate      float64 // requests/s
	window    float64 // seconds
	frontends int
}

const roundRobinBackends = 100

// windowDeviation returns the mean and the standard deviation of a backend's requests per window, over this many
// windows of all backends.
func (r roundRobin) windowDeviation(windows int, seed uint64) (mean, deviation float64) {
	rng := rand.New(rand.NewPCG(seed, uint64(r.frontends)))
	next := make([]int, r.frontends)
	for i := range next {
		next[i] = rng.IntN(roundRobinBackends) // frontends start at different backends
	}

	var sum, squares float64
	counts := make([]int, roundRobinBackends)
	at := rng.ExpFloat64() / r.rate
	for w := range windows {
		clear(counts)
		// Arrivals continue across windows; only the counts restart.
		for ; at < float64(w+1)*r.window; at += rng.ExpFloat64() / r.rate {
			f := rng.IntN(r.frontends)
			counts[next[f]]++
			next[f] = (next[f] + 1) % roundRobinBackends
		}
		for _, n := range counts {
			sum += float64(n)
			squares += float64(n) * float64(n)
		}
	}

	// Compute the variance as the mean of squares minus the square of the mean: counts are small, so the difference
	// is exact enough.
	n := float64(windows * roundRobinBackends)
	mean = sum / n
	return mean, math.Sqrt(squares/n - mean*mean)
}

// drawRoundRobin is table 2, with its deviation for more numbers of frontends.
func drawRoundRobin(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"window_ms", "rate_rps", "frontends", "mean", "deviation", "published"}}
	published := map[string]string{"400 1": "0.753", "400 25": "2.463", "200 1": "0.396", "200 25": "1.860"}
	panel := chart.Panel{Title: "requests of a backend in a window", XLabel: "frontends", YLabel: "standard deviation"}

	for _, setup := range []struct{ rate, window float64 }{{10000, 0.4}, {2000, 0.2}} {
		for _, f := range []int{1, 2, 5, 10, 25, 50, 100} {
			if err := ctx.Err(); err != nil {
				return nil, err
			}

			r := roundRobin{setup.rate, setup.window, f}
			mean, deviation := r.windowDeviation(2000, 1)
			ms := fmt.Sprint(int(setup.window * 1000))

			says := published[fmt.Sprintf("%s %d", ms, f)]
			d.Add(ms, setup.rate, f, mean, deviation, says)
			panel.Add(fmt.Sprintf("%s ms at %g r/s", ms, setup.rate), float64(f), deviation)
			if says != "" {
				d.Claims = append(d.Claims, roundRobinClaim(f, ms, deviation, says))
			}
		}
	}

	d.Panels = []chart.Panel{panel}
	return d, nil
}

func roundRobinClaim(frontends int, ms string, deviation float64, says string) figure.Claim {
	var want float64
	fmt.Sscan(says, &want)
	return figure.Claim{What: fmt.Sprintf("standard deviation, %d frontends, windows of %s ms", frontends, ms), Published: says,
		Ours: fmt.Sprintf("%.3f", deviation), Verdict: figure.Judge(math.Abs(deviation-want) < 0.1*want)}
}
