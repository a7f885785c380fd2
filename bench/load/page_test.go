package load

import (
	"bytes"
	"encoding/xml"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
)

// TestTimelineCoversThePlan: bins are whole seconds, at most 240, and every request is in one.
func TestTimelineCoversThePlan(t *testing.T) {
	for _, c := range []struct {
		last  time.Duration
		width time.Duration
		bins  int
	}{{0, time.Second, 1}, {10*time.Second - 1, time.Second, 10}, {10 * time.Second, time.Second, 11}, {240 * time.Second, 2 * time.Second, 121}, {24*time.Hour - 1, 6 * time.Minute, 240}} {
		line := newTimeline([]arrivals.Arrival{{At: c.last}})
		if line.Width != c.width || len(line.bins) != c.bins {
			t.Errorf("%v: %d bins of %v, want %d of %v", c.last, len(line.bins), line.Width, c.bins, c.width)
		}
		line.addRequest(c.last, time.Millisecond, true)
		line.addRequest(c.last+time.Hour, -1, false) // nothing is due past the plan; if it were, it would not be lost
		line.addRequest(-time.Second, time.Hour, false)
		offered := 0.0
		for _, m := range line.Moments() {
			offered += m.Offered * line.Width.Seconds()
		}
		if offered < 2.999 || offered > 3.001 {
			t.Errorf("%v: %v requests, want 3", c.last, offered)
		}
	}
	if line := newTimeline(nil); len(line.bins) != 1 {
		t.Errorf("an empty plan has %d bins", len(line.bins))
	}
}

// TestPageStandsAlone: the report is one well-formed file that fetches nothing and runs nothing, has every number of
// the table, and shows foreign names as text.
func TestPageStandsAlone(t *testing.T) {
	o := Options{Models: []Model{{"<script>alert(1)</script>", 200 * time.Millisecond}, {"b", 200 * time.Millisecond}}, Plan: plan(300)}
	r := Run(t.Context(), slowThird{}, o)
	var page bytes.Buffer
	if err := r.WritePage(&page, "seed", "7", "trace", "a & b.csv"); err != nil {
		t.Fatal(err)
	}
	text := page.String()
	for _, want := range []string{"&lt;script&gt;alert(1)", "<td>dropped</td><td>100</td>", "<b>300</b>", "<polyline", "a &amp; b.csv", "latency of answered requests"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, bad := range []string{"<script", "NaN", "Inf", "<link", "@import", "src="} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if m := regexp.MustCompile(`(?:href|url)\S*http`).FindString(text); m != "" {
		t.Errorf("the page fetches %s", m)
	}

	from, to := strings.Index(text, "<svg"), strings.Index(text, "</svg>")
	for d := xml.NewDecoder(strings.NewReader(text[from : to+6])); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("plots: %v", err)
		}
	}
}

// TestPageOfNothing: a run that sent nothing has a page as well.
func TestPageOfNothing(t *testing.T) {
	var page bytes.Buffer
	r := Run(t.Context(), stuck{}, Options{Models: []Model{{"a", time.Second}}})
	if err := r.WritePage(&page); err != nil || strings.Contains(page.String(), "NaN") || strings.Contains(page.String(), "Inf") {
		t.Errorf("%v\n%s", err, page.String())
	}
}
