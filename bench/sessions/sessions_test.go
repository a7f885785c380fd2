package sessions

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestMaximalWorkloads: every session's frames are in time on Rim's fourteen workers, Rim's and ours, and ours on ten.
func TestMaximalWorkloads(t *testing.T) {
	for _, name := range []string{"W-1", "W-2", "W-3"} {
		for workers, policies := range map[int]string{14: "rim,downbeat,downbeat-high", 10: "downbeat,downbeat-high"} {
			w, err := FindWorkload(name, 1)
			if err != nil {
				t.Fatal(err)
			}
			w.Workers = workers
			chosen, err := Select(policies)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range chosen {
				r, err := p.Run(w, 1)
				if err != nil || r.Refused > 0 || r.FinishPctMin < 100 || r.Sessions != len(w.Streams) {
					t.Errorf("%s, %d workers: %+v, %v; want every frame of all %d sessions", p.Name, workers, r, err, len(w.Streams))
				}
			}
		}
	}
}

// TestAdmittedSessionsAreServed: until the first refusal more get in than with Rim, and nobody who did is let down.
func TestAdmittedSessionsAreServed(t *testing.T) {
	sessions := map[string]int{}
	for seed := range uint64(1) {
		w, err := FindWorkload("f9", seed+1)
		if err != nil {
			t.Fatal(err)
		}
		chosen, err := Select("downbeat,rim,rim-high,rim-low")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range chosen {
			r, err := p.Run(w, seed+1)
			if err != nil {
				t.Fatal(err)
			}
			sessions[p.Name] += r.Sessions
			if r.FinishPctMin < 99 || r.Refused != 1 {
				t.Errorf("seed %d: %+v, want 99 %% of every session's frames, and one refusal", seed, r)
			}
		}
	}
	t.Log(sessions)
	if sessions["rim"] <= sessions["rim-high"] || sessions["downbeat"]*2 < sessions["rim"]*5 {
		t.Errorf("%v, want that Rim lets more in than its best qualities alone, and Downbeat two and a half times as many", sessions)
	}
}

// TestTwentyNineAtOnce is text result 8: all sessions get in and lose nothing, and Rim without placement across workers refuses some.
func TestTwentyNineAtOnce(t *testing.T) {
	w, err := FindWorkload("t8", 1)
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := Select("downbeat,rim-ncdrop")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		r, err := chosen[i].Run(w, 1)
		if err != nil {
			t.Fatal(err)
		}
		if all := r.Sessions == 29 && r.Refused == 0; all != want || r.FinishPctMin < 99.14 {
			t.Errorf("%s: %+v; want all 29: %v", chosen[i].Name, r, want)
		}
	}
}

// TestRunsReplay: the same seed gives the same result, but for what admission took.
func TestRunsReplay(t *testing.T) {
	for _, p := range Policies() {
		w, err := FindWorkload("W-2", 3)
		if err != nil {
			t.Fatal(err)
		}
		w.Workers = 12
		first, err := p.Run(w, 3)
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		second, err := p.Run(w, 3)
		if err != nil {
			t.Fatal(err)
		}
		if first.FinishPct != second.FinishPct || first.Sessions != second.Sessions || first.Utilization != second.Utilization || first.BatchMean != second.BatchMean {
			t.Errorf("%s: %+v and then %+v", p.Name, first, second)
		}
		if first.Sessions+first.Refused != len(w.Streams) {
			t.Errorf("%s: %d admitted, %d refused of %d", p.Name, first.Sessions, first.Refused, len(w.Streams))
		}
	}
}

// TestRimKeepsItsShares: after all have come and gone every worker is as free as before.
func TestRimKeepsItsShares(t *testing.T) {
	for seed := range uint64(50) {
		w, err := FindWorkload("f9", seed)
		if err != nil {
			t.Fatal(err)
		}
		p := newRim(&w, rule{qualities: "all", choose: "best-fit", cross: true, temporal: 1})
		var in []int
		for i := range w.Streams {
			if p.admitStream(i, 0) {
				in = append(in, i)
			}
			for k, left := range p.left {
				if left < -1e-6 || left > 1+1e-6 {
					t.Fatalf("seed %d: worker %d has %v left", seed, k, left)
				}
			}
		}
		for _, i := range in {
			p.leave(i, 0)
		}
		for k := range p.left {
			if p.left[k] < 1-1e-6 || p.memory[k] != 0 {
				t.Errorf("seed %d: worker %d has %v and %d MB after all have left", seed, k, p.left[k], p.memory[k])
			}
		}
	}
}

// TestFastSessionsHaveTwoWorkers is R7: a session that is too fast for any worker has its frames on two, unless they need each other. The first
// of the two is full afterwards.
func TestFastSessionsHaveTwoWorkers(t *testing.T) {
	serve := func(app string, split bool) (*rim, Result) {
		w := Workload{Apps: Applications(), Workers: 2, Span: steadyFor}
		of := slices.IndexFunc(w.Apps, func(a Application) bool { return a.Name == app })
		w.Apps[of].Qualities = w.Apps[of].Qualities[:1]
		fastest := 1 / w.Apps[of].Work(0).Seconds()
		w.Streams = []Stream{{App: of, FPS: fastest / 2, Until: w.Span}, {App: of, FPS: 1.4 * fastest, Until: w.Span}}

		p := newRim(&w, rule{qualities: "high", choose: "best-fit", split: split, temporal: 1})
		return p, p.serveStreams("rim", 1)
	}

	p, r := serve("en2ge", true)
	if r.Sessions != 2 || r.FinishPctMin < 100 {
		t.Errorf("%+v, want both sessions, and all of their frames", r)
	}
	if len(p.placed) != 3 || math.Abs(p.left[0]) > 1e-9 || p.left[1] < 0.09 {
		t.Errorf("%d placements leave %v of the workers, want 3 that fill the first", len(p.placed), p.left)
	}
	for app, split := range map[string]bool{"actdet": true, "en2ge": false} {
		if _, r := serve(app, split); r.Sessions != 1 || r.Refused != 1 {
			t.Errorf("%s, split: %v: %+v; want that the fast one is refused", app, split, r)
		}
	}
}

func TestWorkloadsAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.json")
	read := func(text string) (Workload, error) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return ReadWorkload(path)
	}
	w, err := read(`{"workers": 2, "sessions": [{"app": "pose", "fps": 5, "count": 3}]}`)
	if err != nil || len(w.Streams) != 3 || w.Workers != 2 || w.Apps[w.Streams[0].App].Name != "pose" {
		t.Errorf("%+v, %v", w, err)
	}
	for want, text := range map[string]string{
		"workers: 0: want 1 to 1000":    `{"workers": 0, "sessions": [{"app": "pose", "fps": 5, "count": 3}]}`,
		"sessions: 0: want one or more": `{}`,
		`app: "x": want one of`:         `{"sessions": [{"app": "x", "fps": 5, "count": 3}]}`,
		"fps: -1: want more than 0":     `{"sessions": [{"app": "pose", "fps": -1, "count": 3}]}`,
		"count: 0: want 1 or more":      `{"sessions": [{"app": "pose", "fps": 1, "count": 0}]}`,
		"count: 20000: want 1 or more":  `{"sessions": [{"app": "pose", "fps": 1, "count": 20000}]}`,
		"span_s: 1e+09: want 1 to 3600": `{"span_s": 1e9, "sessions": [{"app": "pose", "fps": 1, "count": 1}]}`,
		"unexpected end":                `{`,
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that says %q", text, err, want)
		}
	}
	if _, err := FindWorkload("W-9", 1); err == nil || !strings.Contains(err.Error(), "want W-1, W-2, W-3") {
		t.Errorf("error %v", err)
	}
	if _, err := Select("rim,none"); err == nil || !strings.Contains(err.Error(), `policy "none": want all`) {
		t.Errorf("error %v", err)
	}
}
