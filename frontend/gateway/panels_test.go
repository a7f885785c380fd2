package gateway

import (
	"html"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/guard"
	"downbeat.dev/core/observe"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/gateway/page"
)

// browsePanels draws the page in headless Chromium with the given answers by path, and returns the drawn document.
func browsePanels(t *testing.T, answers map[string]any) string {
	t.Helper()
	chromium := findChromium(t)
	mux := http.NewServeMux()
	page.Routes(mux, func() page.Data {
		return page.Data{Connected: true, Ready: true, Scheduler: true, Seconds: pageSeconds, Models: []page.Model{}, GPUs: []page.GPU{{Name: "b/0"}}, Window: 1000}
	})
	mux.HandleFunc("GET /v2/downbeat/", func(w http.ResponseWriter, r *http.Request) {
		if x, ok := answers[r.URL.Path]; ok {
			guard.WriteJSON(w, http.StatusOK, x)
			return
		}
		guard.Refuse(w, http.StatusNotFound, "the scheduler runs in another process")
	})

	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	dom := html.UnescapeString(browse(t, chromium, s.URL+"/", "--dump-dom"))
	if strings.Contains(dom, "gateway does not answer") {
		t.Errorf("the page failed to draw:\n%s", dom)
	}
	return dom
}

// wantDrawn fails for each text that the section of an id lacks.
func wantDrawn(t *testing.T, dom, section string, texts ...string) {
	t.Helper()
	_, drawn, _ := strings.Cut(dom, `<section id="`+section+`"`)
	drawn, _, _ = strings.Cut(drawn, "</section>")
	if strings.HasPrefix(drawn, ` hidden`) {
		t.Errorf("%s is hidden", section)
	}
	for _, want := range texts {
		if !strings.Contains(drawn, want) {
			t.Errorf("%s lacks %q:\n%s", section, want, drawn)
		}
	}
}

// TestPlanInBrowser: the page draws the models on each GPU, by kind and sub-cluster, and the current step of a plan.
func TestPlanInBrowser(t *testing.T) {
	vehicle := engine.ResidentModel{Model: "vehicle-l:1", State: "offered", Static: 3 << 20, Rate: 12}
	dom := browsePanels(t, map[string]any{observe.PlanPath: engine.PlanStatus{Number: 3, State: engine.PlanApplying, Taken: 4, Left: 2,
		UnderWay: []engine.PlanStep{{Number: 5, Act: "load", Model: "vehicle-s:2", GPU: "b/1"}}, NotServed: []string{"person-m:1"},
		LeftOut: []engine.LeftOutOf{{Model: "detector-m:1", GPU: "b/0", Why: "no room"}},
		GPUs: []engine.PlannedGPU{
			{GPU: "b/0", SubCluster: "edge", Kind: "a2", Memory: 16 << 30, Used: 5 << 20, Models: []engine.ResidentModel{vehicle}},
			{GPU: "b/1", SubCluster: "core", Kind: "h100", Models: []engine.ResidentModel{vehicle, {Model: "vehicle-s:2", State: "warm", Static: 1 << 20}}}}}})
	wantDrawn(t, dom, "planbox", "plan 3 is applying: 4 steps taken, 2 left", "under way: load vehicle-s:2 on b/1", "left out: detector-m:1 on b/0: no room",
		"not served for a while, since no GPU has room for both: person-m:1", "a2 · sub-cluster edge · 1 GPU", "h100 · sub-cluster core · 1 GPU",
		"vehicle-l:1: 3.0 MiB, offered, 12 requests/s on all GPUs", `class="pale" title="vehicle-s:2: 1.0 MiB, warm`, "5.0 MiB of 16.0 GiB", "4.0 MiB")
}

// TestFamiliesInBrowser: the page draws the price of GPU time and, for a family, which variants answer, why a variant
// is left out, what one more request costs and which rule dropped requests.
func TestFamiliesInBrowser(t *testing.T) {
	answered := engine.Answered{Seconds: 60, Answers: 200, Accuracy: 0.9725, Variants: []engine.AnsweredByOne{{Model: "vehicle-l", Version: "1", Accuracy: 0.98, Share: 0.75},
		{Model: "vehicle-s", Version: "1", Accuracy: 0.95, Share: 0.25}}, Drops: []engine.DropsByOneRule{{Rule: "no GPU in time", Reason: "deadline_cannot_be_met", Requests: 7}}}
	nobody := engine.Answered{Variants: []engine.AnsweredByOne{}, Drops: []engine.DropsByOneRule{}}
	byOne := []engine.AnsweredByOne{{Model: "vehicle-m", Version: "1", Accuracy: 0.96, Share: 1}}
	floored := engine.Answered{Seconds: 60, Answers: 10, Accuracy: 0.96, Variants: byOne, Drops: nobody.Drops}
	dropped := engine.Answered{Seconds: 60, Variants: nobody.Variants, Drops: []engine.DropsByOneRule{{Rule: "window", Reason: "deadline_cannot_be_met", Requests: 5}}}
	dom := browsePanels(t, map[string]any{observe.ExplainPath: engine.Explanation{
		Kinds: []engine.KindExplanation{{Name: "a2", GPUs: 4, Price: 1.25, PriceMinute: 1.5}},
		Families: []engine.FamilyExplanation{
			{Family: "vehicle", Floor: 0.95, Rate: 40, Queued: 3, Lately: answered, Minute: answered,
				Variants: []engine.Offered{{Model: "vehicle-l", Version: "1", Accuracy: 0.98, Kind: "a2", Batch: 4, GPUTime: 1.5, Intended: true},
					{Model: "vehicle-s", Version: "1", Accuracy: 0.95, Kind: "a2", Batch: 4, GPUTime: 0.5, LeftOut: "price: at 1.25 another is worth more"}},
				Next: &engine.NextCost{Model: "vehicle-l", Kind: "a2", GPUTime: 1.5, Cost: 0.0019}},
			{Family: "vehicle", Floor: 0.95, Asked: true, Lately: floored, Minute: floored}, // the lowest floor has a class of its own
			{Family: "vehicle", Floor: 0.98, Asked: true, Lately: nobody, Minute: nobody},   // a floor that no request has
			{Family: "person", Floor: 0.5, Lately: nobody, Minute: dropped, Why: "no backend serves a variant"}}}})
	wantDrawn(t, dom, "familybox", "a2: 4 GPUs, price 1.25, 1.50 in the last minute", "accuracy 0.95 or more, asked without a floor · 40 requests/s · 3 queued",
		"accuracy 0.9725 lately, 0.9725 in the last 60 s of 200 answers", "one request more: vehicle-l on a2, 1.50 ms of GPU time for 0.0019 of accuracy",
		"<td>75 %</td><td>75 %</td><td>intended</td>", "<td>25 %</td><td>25 %</td><td>price: at 1.25 another is worth more</td>",
		"7 dropped by “no GPU in time” (deadline cannot be met)", "not served: no backend serves a variant")
	wantDrawn(t, dom, "familybox", "accuracy 0.95 or more, asked with a floor", "no answer in the last minute", "5 dropped by “window”",
		`title="vehicle-l/1, vehicle-s/1"`, `title="vehicle-m/1"`) // each class has shares of its own
	if strings.Contains(dom, "accuracy 0.98 or more") {
		t.Error("a floor that nobody asks for is drawn")
	}
}

// TestLearningInBrowser: the page draws a learner's state, its accuracy next to that without learning, and its spare
// work.
func TestLearningInBrowser(t *testing.T) {
	learner := learn.Standing{Model: "vehicle-s", Version: 4, First: 2, Versions: []int{2, 3, 4}, Learning: true, Samples: 900, Steps: 70, Drifts: 1, Published: 2, Discarded: 3,
		Accuracy: []learn.AccuracyAfter{{Ago: 9, Version: 3, Samples: 32, Serving: 0.75, First: 0.5}, {Ago: 1, Version: 4, Samples: 32, Serving: 0.875, First: 0.5625}}}
	dom := browsePanels(t, map[string]any{observe.LearnersPath: map[string]any{"learners": []learn.Standing{learner}},
		observe.ExplainPath: engine.Explanation{Kinds: []engine.KindExplanation{}, Families: []engine.FamilyExplanation{},
			Spare: []engine.SpareExplanation{{Name: "learn vehicle-s", Backend: "b", Step: 4.5}, {Name: "learn other", Backend: "c", Step: 7}}}})
	wantDrawn(t, dom, "learnerbox", "version 4 serves; 2, 3 can be put in force again", "learns: 900 samples, 70 training steps, 1 drift, 2 published, 3 thrown away",
		"what serves: 87.5 %", "by version 2, with which learning began: 56.3 %", "idle GPUs of b get steps of 4.50 ms at most")
	if strings.Contains(dom, "idle GPUs of c") {
		t.Error("another learner's spare work is drawn")
	}

	// A canvas has a width once its curves are drawn.
	if !strings.Contains(dom, `<canvas class="learnt" width="`) {
		t.Error("the curves of the accuracy are not drawn")
	}
}

// TestSessionsInBrowser: the page lists what sessions are promised and get, and draws the steps of the latest frames.
func TestSessionsInBrowser(t *testing.T) {
	const ms = time.Millisecond
	traffic := app.ApplicationStatus{Name: "traffic", Latency: 200 * ms, Steps: []string{"detect", "crop", "vehicle"},
		Sessions: []app.SessionStatus{{Number: 1, Name: "gate", Rate: 6, Latency: 200 * ms, Standing: app.Standing{Frames: 200, InTime: 199, Late: 1}},
			{Number: 2, Rate: 10, Latency: 150 * ms, Standing: app.Standing{Frames: 100, InTime: 90, Failed: 10, Hurt: true}}},
		Latest: []app.FrameTrace{{Session: 1, Elapsed: 12 * ms, Budget: 200 * ms, Steps: []app.StepTrace{{To: 5 * ms, Requests: 1}, {From: 5 * ms, To: 6 * ms}, {From: 6 * ms, To: 12 * ms, Requests: 3}}}}}
	dom := browsePanels(t, map[string]any{observe.SessionsPath: app.Status{Applications: []app.ApplicationStatus{traffic}}})
	wantDrawn(t, dom, "sessionbox", "<td>traffic</td><td>gate</td><td>6 frames/s</td><td>200 ms</td><td>99.5 %</td><td>1</td><td>0</td><td>kept</td>",
		"<td>traffic</td><td>session 2</td><td>10 frames/s</td><td>150 ms</td><td>90", "<td>10</td><td>0</td><td>broken</td>")

	// A canvas has a size once it is drawn.
	_, canvas, _ := strings.Cut(dom, `<canvas id="frames"`)
	canvas, _, _ = strings.Cut(canvas, ">")
	if !strings.Contains(canvas, `width="`) || !strings.Contains(canvas, `height="`) {
		t.Errorf("the steps of the latest frame are not drawn: <canvas id=\"frames\"%s>", canvas)
	}
}

// TestCanariesInBrowser: the page lists the versions on trial, with their counts.
func TestCanariesInBrowser(t *testing.T) {
	dom := browsePanels(t, map[string]any{CanaryPath: map[string]any{"canaries": []CanaryStatus{{Canary: Canary{Model: "vehicle-s", Base: "1", Version: "2", Share: 0.1, Shadow: 0.5},
		BaseEnds: CanaryEnds{Good: 90, Bad: 2, Seconds: 0.92}, VersionEnds: CanaryEnds{Good: 10, Seconds: 0.2}, Copies: CopyEnds{Same: 40, Different: 3, Failed: 1, Skipped: 5, Difference: 0.25}}}}})
	wantDrawn(t, dom, "canarybox", "<td>vehicle-s</td><td>1</td><td>2</td><td>10 %</td><td>90 good, 2 bad, 10.0 ms</td><td>10 good, 0 bad, 20.0 ms</td><td>50 %</td>",
		"<td>40</td><td>3</td><td>1</td><td>5</td><td>0.25</td>")
	for _, section := range []string{"planbox", "familybox", "sessionbox", "learnerbox"} {
		if !strings.Contains(dom, `<section id="`+section+`" hidden`) {
			t.Errorf("%s is drawn without anything to tell", section)
		}
	}
}
