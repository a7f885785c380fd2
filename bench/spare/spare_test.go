package spare

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"downbeat.dev/bench/figure"
)

// TestLearnersUseIdleTime: at half load and at 0.9 of the peak steps use the larger part of the idle time, and cost the
// requests nothing that counts.
func TestLearnersUseIdleTime(t *testing.T) {
	o := DefaultOptions()
	o.Settings, o.Loads, o.Steps, o.Seeds, o.Span = o.Settings[:1], []float64{0.5, 0.9}, []time.Duration{2e6, 10e6}, 1, 5*time.Second
	rows, err := Run(t.Context(), o, func(Row) {})
	if err != nil || len(rows) != 4 {
		t.Fatalf("%v, %d rows, want 4", err, len(rows))
	}

	least := map[[2]float64]float64{{0.5, 2}: 0.90, {0.5, 10}: 0.83, {0.9, 2}: 0.70, {0.9, 10}: 0.1}
	for i := range rows {
		r := &rows[i]
		t.Logf("%+v: used %.3f", *r, r.Used())
		if want := least[[2]float64{r.Load, r.StepMS}]; r.Used() < want || r.Used() > 1.01 {
			t.Errorf("load %v, steps of %v ms: %.3f of the idle time used, want %v to 1", r.Load, r.StepMS, r.Used(), want)
		}
		if r.Ratio < 0.998 || r.Ratio > 1.002 || r.Added > 0.2 {
			t.Errorf("load %v, steps of %v ms: goodput ratio %v, bad added %v %%", r.Load, r.StepMS, r.Ratio, r.Added)
		}
	}

	var lines, picture bytes.Buffer
	if err := figure.WriteLines(&lines, rows...); err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := json.Unmarshal(lines.Bytes()[:bytes.IndexByte(lines.Bytes(), '\n')], &back); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"load_share", "step_ms", "idle_share", "spare_share", "goodput_ratio", "bad_added_pct"} {
		if _, ok := back[key]; !ok {
			t.Errorf("a row has no %s: %v", key, back)
		}
	}
	if err := Draw(&picture, rows); err != nil || strings.Count(picture.String(), "<svg") != 1 {
		t.Errorf("%v, %d bytes; want a picture", err, picture.Len())
	}
}

// TestOptionsSayWhatIsWrong: what cannot be measured is refused by name and value.
func TestOptionsSayWhatIsWrong(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"load 3: want":         func(o *Options) { o.Loads = []float64{3} },
		"step 11ms: want":      func(o *Options) { o.Steps = []time.Duration{11e6} },
		"seeds = 0":            func(o *Options) { o.Seeds = 0 },
		`setting "none"`:       func(o *Options) { o.Settings = []string{"none"} },
		"span = 1ms: want 1 t": func(o *Options) { o.Span = 1e6 },
	} {
		o := DefaultOptions()
		change(&o)
		if _, err := Run(t.Context(), o, func(Row) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %q", err, want)
		}
	}
}
