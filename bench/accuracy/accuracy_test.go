package accuracy

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"downbeat.dev/bench/family"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/policy/scaling"
	"downbeat.dev/bench/solver"
)

// shortSetting is the first seconds of a made trace.
func shortSetting(t *testing.T, shape string, seconds int) Setting {
	t.Helper()
	found, err := family.FindShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	s := DefaultSetting()
	s.Trace, s.Zoo = family.Make(found, 1), family.MakeZoo()
	n := 0
	for n < len(s.Trace.Arrivals) && s.Trace.Arrivals[n].At < time.Duration(seconds)*time.Second {
		n++
	}
	s.Trace.Arrivals = s.Trace.Arrivals[:n]
	return s
}

func requireSolver(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, solver.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCompare: a comparison's measures agree with one another and with the bound.
func TestCompare(t *testing.T) {
	policies, err := scaling.Select("downbeat,clipper-ht,clipper-ha")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compare(t.Context(), shortSetting(t, "diurnal", 22), policies, nil)
	requireSolver(t, err)
	if len(c.Bounds.Seconds) != 22 || len(c.Bounds.Tens) != 3 {
		t.Fatalf("%d and %d windows, want 22 and 3", len(c.Bounds.Seconds), len(c.Bounds.Tens))
	}
	for _, r := range c.Results {
		total := r.Measured.Total()
		if total.Arrived != len(c.Setting.Trace.Arrivals) || r.Served != total.Served || math.Abs(r.ViolationRatio-total.Violations()) > 1e-12 {
			t.Errorf("%s: %+v against %+v", r.Policy, r.Row, total)
		}
		if r.LargestDrop1s < r.LargestDrop10s-1e-12 || r.LargestDrop10s < 1-r.EffectiveAccuracy-1e-12 {
			t.Errorf("%s: drops %v and %v at accuracy %v: a longer window cannot drop more", r.Policy, r.LargestDrop1s, r.LargestDrop10s, r.EffectiveAccuracy)
		}
		if r.ViolationRatio == 0 && r.EffectiveAccuracy > r.LPBoundAccuracy+1e-9 {
			t.Errorf("%s serves all at %v, the bound is %v", r.Policy, r.EffectiveAccuracy, r.LPBoundAccuracy)
		}
	}
	if ours := c.Results[0]; ours.ViolationRatio > 0.001 || ours.EffectiveAccuracy < ours.LPBoundAccuracy-0.005 {
		t.Errorf("ours at a light load: violations %v, accuracy %v, bound %v", ours.ViolationRatio, ours.EffectiveAccuracy, ours.LPBoundAccuracy)
	}
	testWriters(t, c)
}

// testWriters: rows are written under the names that others read.
func testWriters(t *testing.T, c *Comparison) {
	var rows []Row
	for _, r := range c.Results {
		rows = append(rows, r.Row)
	}
	var b bytes.Buffer
	if err := figure.WriteLines(&b, rows...); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.NewDecoder(&b).Decode(&got); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Split("trace,policy,slo_scale,load_time_s,requests,served,effective_accuracy,largest_drop_1s,largest_drop_10s,violation_ratio,worst_family_drop,lp_bound_accuracy,plan_ms", ",") {
		if _, ok := got[key]; !ok {
			t.Errorf("no key %s in %v", key, got)
		}
	}
	b.Reset()
	if err := WriteCSV(&b, rows); err != nil {
		t.Fatal(err)
	}
	if table, err := csv.NewReader(&b).ReadAll(); err != nil || len(table) != len(rows)+1 || len(table[0]) != len(got) {
		t.Errorf("%d lines, %v", len(table), err)
	}
	if err := WriteTable(&b, rows); err != nil {
		t.Error(err)
	}
}

// TestBound: enough devices lose no accuracy, one device must choose, and what does not fit is not served.
func TestBound(t *testing.T) {
	s := shortSetting(t, "diurnal", 2)
	w, err := s.World()
	if err != nil {
		t.Fatal(err)
	}
	demand := make([]float64, len(w.Models))
	demand[0] = 10
	accuracy, served, err := Bound(t.Context(), w.Models, []float64{1000, 1000, 1000}, demand)
	requireSolver(t, err)
	if accuracy < 1-1e-9 || served < 1-1e-9 {
		t.Errorf("enough devices: accuracy %v, served %v", accuracy, served)
	}

	light, lightTime := w.Models[0].Variants[0].Accuracy, LeastCost(&w.Models[0], 0, 0)
	accuracy, served, err = Bound(t.Context(), w.Models, []float64{5 * lightTime, 0, 0}, []float64{10, 0, 0, 0, 0, 0, 0, 0, 0})
	requireSolver(t, err)
	if math.Abs(served-0.5) > 1e-6 || math.Abs(accuracy-light) > 1e-6 {
		t.Errorf("time for half of the demand: accuracy %v, served %v, want %v and 0.5", accuracy, served, light)
	}
}

// TestFiguresAreWritten: figures that take little time are written with as many fields as their headers have.
func TestFiguresAreWritten(t *testing.T) {
	dir := t.TempDir()
	in := &Inputs{Settings: []Setting{shortSetting(t, "diurnal", 11), shortSetting(t, "bursty", 11)}, Seed: 1}
	for _, id := range []string{"f1", "F4", "f5", "f9"} {
		f, err := FindFigure(id)
		if err != nil {
			t.Fatal(err)
		}
		err = f.Write(t.Context(), in, dir)
		requireSolver(t, err)
		text, err := os.ReadFile(filepath.Join(dir, f.ID+".csv"))
		if err != nil {
			t.Fatal(err)
		}
		if records, err := csv.NewReader(bytes.NewReader(text)).ReadAll(); err != nil || len(records) < 10 {
			t.Errorf("%s: %d records, %v", id, len(records), err)
		}
		picture, err := os.ReadFile(filepath.Join(dir, f.ID+".svg"))
		if err != nil || !bytes.Contains(picture, []byte("</svg>")) || bytes.Contains(picture, []byte("NaN")) {
			t.Errorf("%s: %d bytes of picture, %v", id, len(picture), err)
		}
	}
	if _, err := FindFigure("f2"); err == nil || !strings.Contains(err.Error(), "f10") {
		t.Errorf("error %v, want one that lists the figures", err)
	}
}

func TestParseDevices(t *testing.T) {
	got, err := ParseDevices("cpu=20,v100=10")
	if err != nil || len(got) != 2 || got[1] != (Device{"v100", 10}) {
		t.Errorf("%v, %v", got, err)
	}
	for bad, want := range map[string]string{"": "COUNT at least 1", "cpu": "COUNT at least 1", "cpu=0": "COUNT at least 1", "cpu=-1": "COUNT at least 1",
		"cpu=x": "COUNT at least 1", "cpu=1,cpu=2": "kind cpu appears twice", "=3": "COUNT at least 1", "cpu=5000": "more than 4096 devices"} {
		if _, err := ParseDevices(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", bad, err, want)
		}
	}
	s := shortSetting(t, "diurnal", 1)
	s.Devices = []Device{{"tpu", 1}}
	if _, err := s.World(); err == nil || !strings.Contains(err.Error(), "tpu") || !strings.Contains(err.Error(), "1080ti") {
		t.Errorf("error %v, want one that names the kind and those that there are", err)
	}
}
