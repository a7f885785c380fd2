package sessions

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

// drawStreams draws sessions of random applications at one of Rim's frame rates.
func drawStreams(apps, n int, seed uint64) (all []Stream) {
	rng := rand.New(rand.NewPCG(seed, 9))
	for range n {
		all = append(all, Stream{App: rng.IntN(apps), FPS: []float64{5, 6, 9, 10}[rng.IntN(4)]})
	}
	return all
}

// Limits of a file.
const (
	fileBytesMax = 1 << 20
	streamsMax   = 10_000
	workersMax   = 1000
)

// ReadWorkload reads sessions from a JSON file:
//
//	{"workers": 14, "span_s": 30, "sessions": [{"app": "traffic", "fps": 6, "count": 10}]}
func ReadWorkload(path string) (Workload, error) {
	w := Workload{Name: path, Apps: Applications()}
	info, err := os.Stat(path)
	if err != nil {
		return w, err
	}

	if info.Size() > fileBytesMax {
		return w, fmt.Errorf("%s: %d bytes: want at most %d", path, info.Size(), fileBytesMax)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return w, err
	}

	file := struct {
		Workers  int     `json:"workers"`
		SpanS    float64 `json:"span_s"`
		Sessions []struct {
			App   string  `json:"app"`
			FPS   float64 `json:"fps"`
			Count int     `json:"count"`
		} `json:"sessions"`
	}{Workers: workers, SpanS: steadyFor.Seconds()}
	if err := json.Unmarshal(text, &file); err != nil {
		return w, fmt.Errorf("%s: %w", path, err)
	}

	switch {
	case file.Workers < 1 || file.Workers > workersMax:
		return w, fmt.Errorf("%s: workers: %d: want 1 to %d", path, file.Workers, workersMax)
	case !(file.SpanS >= 1 && file.SpanS <= 3600):
		return w, fmt.Errorf("%s: span_s: %v: want 1 to 3600", path, file.SpanS)
	case len(file.Sessions) == 0:
		return w, fmt.Errorf("%s: sessions: 0: want one or more", path)
	}

	w.Workers, w.Span = file.Workers, time.Duration(file.SpanS*1e9)
	for i, s := range file.Sessions {
		// Look applications up by name: their profiles are this package's.
		app := slices.IndexFunc(w.Apps, func(a Application) bool { return a.Name == s.App })
		switch {
		case app < 0:
			return w, fmt.Errorf("%s: session %d: app: %q: want one of Rim's seven, such as traffic", path, i, s.App)
		case !(s.FPS > 0 && s.FPS <= 1000):
			return w, fmt.Errorf("%s: session %d: fps: %v: want more than 0 and at most 1000", path, i, s.FPS)
		case s.Count < 1 || len(w.Streams)+s.Count > streamsMax:
			return w, fmt.Errorf("%s: session %d: count: %d: want 1 or more, and at most %d sessions in all", path, i, s.Count, streamsMax)
		}
		for range s.Count {
			w.Streams = append(w.Streams, Stream{App: app, FPS: s.FPS, Until: w.Span})
		}
	}
	return w, nil
}

// schedule sets when the first n sessions of a workload with UntilFull come and go.
func (w *Workload) schedule(n int) {
	w.Streams = w.Streams[:n]
	if !w.UntilFull {
		return
	}

	// Sessions leave at the pace at which they came, the latest first.
	full := time.Duration(n) * joinEvery
	w.Span = full + holdFor + time.Duration(n)*joinEvery
	for i := range w.Streams {
		w.Streams[i].From = time.Duration(i) * joinEvery
		w.Streams[i].Until = full + holdFor + time.Duration(n-1-i)*joinEvery
	}
}

// limitTo keeps the first n sessions.
func (w *Workload) limitTo(n int) { w.Streams = w.Streams[:n] }

// phase returns the offset of a session's frames within their period.
func phase(seed uint64, i int, period time.Duration) time.Duration {
	return time.Duration(rand.New(rand.NewPCG(seed, uint64(1000+i))).Float64() * float64(period))
}
