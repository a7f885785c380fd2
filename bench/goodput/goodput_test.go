package goodput

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"downbeat.dev/bench/figure"
	"downbeat.dev/core/arrivals"
)

// small is enough to tell a regression from noise, and fast.
func small() Options {
	return Options{Seeds: 2, Span: 10e9, Precision: 0.002, BadMax: 0.01}
}

// TestTable4Floor: a floor a little below what these seeds give; the full search is the bench.
func TestTable4Floor(t *testing.T) {
	for name, floor := range map[string]float64{"table4-resnet50": 5400, "table4-inceptionresnet": 940} {
		s, err := One(name)
		if err != nil {
			t.Fatal(err)
		}
		w, err := Prepare(s, small(), s.Capacity()*1.05)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Policies("downbeat")
		if err != nil {
			t.Fatal(err)
		}
		got, bound := w.Search(p[0], floor), w.Bound()
		if got < floor || got > bound {
			t.Errorf("%s: goodput %.0f r/s, want at least %.0f and at most the bound %.0f", name, got, floor, bound)
		}
		if got < s.Published["symphony"] {
			t.Errorf("%s: goodput %.0f r/s, want more than the published %.0f", name, got, s.Published["symphony"])
		}
		if again := w.Search(p[0], floor); again != got {
			t.Errorf("%s: %v r/s, then %v: searches differ", name, got, again)
		}
		if b := w.Run(p[0], got); 1 < b.Busy || b.Busy < 0.5 {
			t.Errorf("%s: busy %.3f, want between a half and one", name, b.Busy)
		}
	}
}

// TestBoundIsExactWhereItIsKnown: requests at the same moments, so that every batch is full.
func TestBoundIsExactWhereItIsKnown(t *testing.T) {
	s, err := One("table4-resnet50")
	if err != nil {
		t.Fatal(err)
	}
	o := small()
	o.BadMax = 0
	w, err := Prepare(s, o, s.Capacity()*1.05)
	if err != nil {
		t.Fatal(err)
	}
	strict := w.Bound()
	o.BadMax = 0.01
	w.o = o
	loose := w.Bound()
	if strict >= loose || loose > s.Capacity()*1.0102*1.001 {
		t.Errorf("bound %.0f with no drops, %.0f with 1 %%, capacity %.0f: want them in this order, the last within the drops", strict, loose, s.Capacity())
	}
	o.Ctrl = 2e6
	w.o = o
	if late := w.Bound(); late >= loose {
		t.Errorf("bound %.0f with 2 ms of delay, %.0f without: want less", late, loose)
	}
	b := newBound(w)
	w.o.Ctrl = 0
	// Three at once: one batch. One far later: another. μ high: nothing is dropped.
	cost, drops := b.cheapestAt(0, []float64{1, 1, 1, 2}, 1, 10, 1)
	if want := 4*1.053e-3 + 2*5.072e-3; drops != 0 || cost < want-1e-9 || cost > want+1e-9 {
		t.Errorf("cost %v with %d drops, want %v and none", cost, drops, want)
	}
	if cost, drops := b.cheapestAt(0, []float64{1, 1, 1, 2}, 1, 10, 0.003); drops != 1 || cost < 3*1.053e-3+5.072e-3+0.003-1e-9 {
		t.Errorf("cost %v with %d drops at a price of 3 ms, want the lone request dropped", cost, drops)
	}
}

func TestEverySettingIsSound(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range Settings() {
		if seen[s.Name] {
			t.Errorf("%s appears twice", s.Name)
		}
		seen[s.Name] = true
		sum := 0.0
		for _, v := range s.Share {
			sum += v
		}
		if len(s.Share) != len(s.Models) || sum < 0.999 || sum > 1.001 || s.GPUs < 1 || !(s.Capacity() > 0) {
			t.Errorf("%s: %d models, shares of %v in all, %d GPUs, capacity %v", s.Name, len(s.Models), sum, s.GPUs, s.Capacity())
		}
	}
	for _, want := range []string{"table4-resnet50", "table4-inceptionresnet", "fig6-1080ti-all", "fig6-a100-lt2", "fig7-poisson-even-15ms",
		"fig7-gamma-zipf-100ms", "fig10-stability", "fig10-utilization", "fig11-gpus-8", "fig13-25ms-100us", "fig4-mixed-gamma1"} {
		if !seen[want] {
			t.Errorf("no setting %s", want)
		}
	}
	for list, n := range map[string]int{"all": len(seen), "fig7": 24, "fig7-gamma-even": 6, "fig8": 2, "table4,fig6": 8, "fig11-gpus": 5} {
		if got, err := Select(list); err != nil || len(got) != n {
			t.Errorf("Select(%q): %d settings, %v; want %d", list, len(got), err, n)
		}
	}
	for _, list := range []string{"", "fig5", "table", "table4,nothing"} {
		if _, err := Select(list); err == nil || !strings.Contains(err.Error(), "table4-resnet50") {
			t.Errorf("Select(%q): error %v, want one that lists the settings", list, err)
		}
	}
	if _, err := Policies("fifo"); err == nil || !strings.Contains(err.Error(), "downbeat") {
		t.Errorf("Policies(fifo): error %v, want one that lists the policies", err)
	}
	for list, n := range map[string]int{"all": 13, "nexus": 2, "clockwork": 1, "symphony": 4, "downbeat,eager": 2} {
		if got, err := Policies(list); err != nil || len(got) != n {
			t.Errorf("Policies(%q): %d, %v; want %d", list, len(got), err, n)
		}
	}
}

// TestFilesHoldWhatWasFound checks the shapes of everything that Compare's rows become.
func TestFilesHoldWhatWasFound(t *testing.T) {
	o := small()
	o.Seeds, o.Span, o.Precision = 1, 2e9, 0.02
	settings, err := Select("table4-inceptionresnet,fig10,fig11-gpus-8,fig13-100ms-0us,fig13-100ms-5000us")
	if err != nil {
		t.Fatal(err)
	}
	policies, err := Policies("downbeat,eager")
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	rows, err := Compare(context.Background(), settings, policies, o, nil, func(Row) { told++ })
	if err != nil || told != len(rows) || len(rows) != 2*len(settings) {
		t.Fatalf("%d rows, told of %d, error %v; want %d", len(rows), told, err, 2*len(settings))
	}
	again, err := Compare(context.Background(), settings, policies, o, nil, func(Row) {})
	if err != nil || !reflect.DeepEqual(rows, again) {
		t.Errorf("a second comparison differs (error %v)", err)
	}
	for _, r := range rows {
		if r.Goodput <= 0 || r.Goodput > r.Bound || r.BadPct > 1 || r.Busy > 1 || r.Batch < 1 {
			t.Errorf("%+v: want goodput up to the bound, at most 1 %% bad and busy up to one", r)
		}
	}
	dir := filepath.Join(t.TempDir(), "new")
	if err := WriteDir(dir, rows); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"goodput.csv", "fig8.csv", "fig9.csv", "fig10.csv"} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		recs, err := csv.NewReader(f).ReadAll()
		f.Close()
		if err != nil || len(recs) < 2 || recs[0][0] != "setting" {
			t.Errorf("%s: %d lines, %v", name, len(recs), err)
		}
		if name == "goodput.csv" && len(recs) != 1+len(rows) {
			t.Errorf("goodput.csv has %d lines, want %d", len(recs), 1+len(rows))
		}
	}
	for _, name := range []string{"goodput.svg", "fig8.svg", "fig9.svg", "fig10.svg", "fig11.svg", "fig13.svg"} {
		checkSVG(t, filepath.Join(dir, name))
	}
	checkText(t, rows)
}

// checkSVG wants well-formed XML without NaN that mentions the policy.
func checkSVG(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
		return
	}
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
			break
		}
	}
	for _, bad := range []string{"NaN", "Inf"} {
		if bytes.Contains(text, []byte(bad)) {
			t.Errorf("%s contains %s", name, bad)
		}
	}
	if !bytes.Contains(text, []byte("downbeat")) {
		t.Errorf("%s does not name the policy", name)
	}
}

func checkText(t *testing.T, rows []Row) {
	t.Helper()
	var b bytes.Buffer
	if err := WriteTable(&b, rows); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(b.String(), "\n"); lines != 1+len(rows) {
		t.Errorf("table has %d lines, want %d:\n%s", lines, 1+len(rows), b.String())
	}
	b.Reset()
	if err := figure.WriteLines(&b, rows...); err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(&b)
	for i := range rows {
		var got map[string]any
		if err := d.Decode(&got); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"setting", "policy", "goodput_rps", "bad_pct", "bound_rps", "published_rps", "seeds"} {
			if _, ok := got[key]; !ok {
				t.Errorf("row %d has no %s", i, key)
			}
		}
	}
}

func TestCompareEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s, err := Select("table4-resnet50")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Policies("downbeat")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compare(ctx, s, p, small(), nil, func(Row) { t.Error("told of a row") }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
	if _, err := Prepare(Setting{Models: copyModels(resNet50, 1, 1*ms), Share: arrivals.Even(1), GPUs: 1}, small(), 10); err == nil || !strings.Contains(err.Error(), "SLO 1ms is shorter than ℓ(1)") {
		t.Errorf("an SLO shorter than ℓ(1): %v", err)
	}
}
