package goodput

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const profiles = "model,alpha_ms,beta_ms,slo_ms\na,1,5,25\nb,2,3,40\n"

// replay writes the inputs and runs them.
func replay(t *testing.T, arrivals, profiles string, gpus int) (Replay, string, error) {
	t.Helper()
	dir := t.TempDir()
	r := Replay{Arrivals: filepath.Join(dir, "arrivals.csv"), Profiles: filepath.Join(dir, "profiles.csv"), GPUs: gpus, Ctrl: 100e3, Data: 50e3,
		Batches: filepath.Join(dir, "batches.csv"), Outcomes: filepath.Join(dir, "outcomes.csv")}
	p, err := Policies("downbeat")
	if err != nil {
		t.Fatal(err)
	}
	r.Policy = p[0]
	for name, text := range map[string]string{r.Arrivals: arrivals, r.Profiles: profiles} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b strings.Builder
	err = r.Run(&b)
	return r, b.String(), err
}

func read(t *testing.T, name string) [][]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	recs, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return recs
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestScheduleCanBeCheckedFromItsFiles checks the schedule as an outsider would, from the files
// alone: durations, overlaps, inputs, deadlines, and that every request ends once.
func TestScheduleCanBeCheckedFromItsFiles(t *testing.T) {
	var arrivals strings.Builder
	const n = 4000
	at := make([]int64, n) // ns
	for i := range n {
		at[i] = int64(i) * 350_500
		fmt.Fprintf(&arrivals, "%.1f,%c\n", float64(at[i])/1e3, 'a'+i%2)
	}
	r, summary, err := replay(t, arrivals.String(), profiles, 3)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(summary, "all") {
		t.Errorf("summary %q", summary)
	}
	ended := make(map[string]int64)
	free := make(map[string]int64)
	recs := read(t, r.Batches)
	if got := strings.Join(recs[0], ","); got != "batch,gpu,model,size,start_ns,end_ns,requests" {
		t.Fatalf("header %q", got)
	}
	alpha, beta := map[string]int64{"a": 1e6, "b": 2e6}, map[string]int64{"a": 5e6, "b": 3e6}
	for i, rec := range recs[1:] {
		gpu, model, size, start, end := rec[1], rec[2], number(t, rec[3]), number(t, rec[4]), number(t, rec[5])
		ids := strings.Split(rec[6], ";")
		if number(t, rec[0]) != int64(i) || int64(len(ids)) != size || end-start != alpha[model]*size+beta[model] {
			t.Fatalf("batch %v: want number %d, as many requests as its size, and ℓ(size)", rec, i)
		}
		if start < free[gpu] || number(t, gpu) < 0 || number(t, gpu) > 2 {
			t.Fatalf("batch %v: gpu is free at %d", rec, free[gpu])
		}
		free[gpu] = end
		for _, id := range ids {
			k := number(t, id)
			if start < at[k]+100e3+50e3*size || string(rune('a'+k%2)) != model {
				t.Fatalf("batch %v: request %d of another model or started before its input can be there", rec, k)
			}
			if _, twice := ended[id]; twice {
				t.Fatalf("request %s runs twice", id)
			}
			ended[id] = end
		}
	}
	slo := []int64{25e6, 40e6}
	outcomes := read(t, r.Outcomes)
	if len(outcomes) != n+1 || strings.Join(outcomes[0], ",") != "request,outcome,time_ns" {
		t.Fatalf("%d outcomes, header %v; want %d", len(outcomes)-1, outcomes[0], n)
	}
	for i, rec := range outcomes[1:] {
		end, ran := ended[rec[0]]
		want := "dropped"
		if ran {
			want = "served"
			if end > at[i]+slo[i%2] {
				want = "late"
			}
		}
		if number(t, rec[0]) != int64(i) || rec[1] != want || ran && number(t, rec[2]) != end {
			t.Fatalf("outcome %v: want request %d %s at %d", rec, i, want, end)
		}
	}
}

func TestScheduleNamesWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		arrivals, profiles string
		gpus               int
		want               []string
	}{
		"time":        {"0,a\nx,b\n", profiles, 1, []string{"arrivals.csv", "line 2", "arrival_us", `"x"`, "microseconds"}},
		"not finite":  {"NaN,a\n", profiles, 1, []string{"line 1", "arrival_us", `"NaN"`}},
		"negative":    {"-1,a\n", profiles, 1, []string{"line 1", "arrival_us", `"-1"`, "from 0"}},
		"model":       {"0,c\n", profiles, 1, []string{"arrivals.csv", "line 1", "model", `"c"`, "a, b"}},
		"fields":      {"0,a,1\n", profiles, 1, []string{"line 1", "3 fields", "want 2"}},
		"empty line":  {"0,a\n\n1,a\n", profiles, 1, []string{"line 2", "want 2"}},
		"order":       {"arrival_us,model\n5,a\n4,a\n", profiles, 1, []string{"line 3", "arrival_us", `"4"`, "in order", "5"}},
		"gpus":        {"0,a\n", profiles, 0, []string{"gpus = 0", "want 1"}},
		"header":      {"0,a\n", "a,1,2,3\n", 1, []string{"profiles.csv", "header", "model"}},
		"profile":     {"0,a\n", "model,alpha_ms,beta_ms,slo_ms\na,x,2,20\n", 1, []string{"profiles.csv", "line 2", "alpha_ms", `"x"`}},
		"short slo":   {"0,a\n", "model,alpha_ms,beta_ms,slo_ms\na,5,2,3\n", 1, []string{"profiles.csv", "line 2", "SLO"}},
		"no profiles": {"0,a\n", "", 1, []string{"profiles.csv", "want a header", "alpha_ms"}},
		"no models":   {"0,a\n", "model,alpha_ms,beta_ms,slo_ms\n", 1, []string{"profiles.csv", "no models"}},
		"long a line": {"0," + strings.Repeat("a", lineMax+1), profiles, 1, []string{"arrivals.csv", "line 1", "too long"}},
	} {
		_, _, err := replay(t, c.arrivals, c.profiles, c.gpus)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want one that says %s", name, err, want)
			}
		}
	}
	if r, _, err := replay(t, "", profiles, 1); err != nil || len(read(t, r.Batches)) != 1 {
		t.Errorf("no arrivals: %v, want empty files with headers", err)
	}
	p, err := Policies("downbeat")
	if err != nil {
		t.Fatal(err)
	}
	r := Replay{Arrivals: "/nowhere/a", Profiles: "/nowhere/p", GPUs: 1, Policy: p[0]}
	if err := r.Run(&strings.Builder{}); err == nil || !strings.Contains(err.Error(), "/nowhere/p") {
		t.Errorf("missing file: error %v, want its name", err)
	}
}

func FuzzReadArrivals(f *testing.F) {
	f.Add([]byte("0,a\n1.5,b\n"))
	f.Add([]byte("arrival_us,model\n1e3,a\n"))
	f.Add([]byte("\ufeff0,a\r\n0,a"))
	f.Add([]byte("1e999,a\n"))
	index := map[string]int32{"a": 0, "b": 1}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := readArrivals(bytes.NewReader(text), index)
		if err != nil {
			return
		}
		last := time.Duration(0)
		for _, a := range got {
			if a.At < last || a.Model < 0 || a.Model > 1 {
				t.Fatalf("%v after %v", a, last)
			}
			last = a.At
		}
	})
}

// TestScheduleWritesOverNothing: no file is written over one that is read, nor over the other output.
func TestScheduleWritesOverNothing(t *testing.T) {
	r, text, err := replay(t, "0,a\n", profiles, 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := "busy 0.251 of 0.024 s"; !strings.Contains(text, want) { // ℓ(1) = 6 ms, till the end of the batch
		t.Errorf("got %s, want %q in it", text, want)
	}
	link := filepath.Join(filepath.Dir(r.Arrivals), "link")
	if err := os.Symlink(r.Arrivals, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*Replay)
		want   string
	}{
		{func(r *Replay) { r.Outcomes = r.Batches }, "outcomes = "},
		{func(r *Replay) { r.Batches = r.Arrivals }, "batches = "},
		{func(r *Replay) { r.Outcomes = filepath.Dir(r.Profiles) + "/./profiles.csv" }, "outcomes = "},
		{func(r *Replay) { r.Batches = link }, "batches = "},
		{func(r *Replay) { r.Outcomes = "-" }, "outcomes = "},
		{func(r *Replay) { r.Arrivals, r.Profiles = "-", "-" }, "arrivals and profiles = "},
	} {
		bad := r
		c.change(&bad)
		if err := bad.Run(io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
	if got := read(t, r.Arrivals); len(got) != 1 {
		t.Errorf("arrivals: %v", got)
	}
	r.Batches, r.Outcomes = os.DevNull, os.DevNull // what is no file may stand for both
	if err := r.Run(io.Discard); err != nil {
		t.Error(err)
	}
}

// TestScheduleReadsStandardInput: "-" stands for it.
func TestScheduleReadsStandardInput(t *testing.T) {
	r, want, err := replay(t, "0,a\n5,b\n", profiles, 1)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(r.Arrivals)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer func(was *os.File) { os.Stdin = was }(os.Stdin)
	os.Stdin, r.Arrivals = f, "-"
	var got strings.Builder
	if err := r.Run(&got); err != nil || got.String() != want {
		t.Errorf("%q, error %v; want %q", got.String(), err, want)
	}
}
