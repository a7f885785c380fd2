package reconfigure

import (
	"strings"
	"testing"
	"time"
)

// TestASmallMove: two models of eight move at half load, and nothing is lost by it.
func TestASmallMove(t *testing.T) {
	o := Options{Load: 0.3, GPUs: 4, Clusters: 2, Models: 8, Share: 0.25, Moves: 2, LoadTime: 100 * time.Millisecond, Span: 10 * time.Second, Seed: 1}
	told := 0
	rows, err := Run(t.Context(), o, []string{"share", "again"}, func(Row) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Moved != 2 || r.Steps == 0 || r.BadPctDuring-r.BadPctBefore >= 0.1 || r.MemoryExceeded+r.Nowhere+r.Misplaced+r.GivenBack != 0 || r.LoadShare != 0.3 {
			t.Errorf("%+v", r)
		}
	}
	var out strings.Builder
	if err := WriteTable(&out, rows); err != nil || told != 2 || strings.Count(out.String(), "\n") != 3 {
		t.Errorf("%v, %d rows told:\n%s", err, told, out.String())
	}
}

func TestReconfigureRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*Options){
		"load 0": func(o *Options) { o.Load = 0 }, "gpus 3": func(o *Options) { o.GPUs = 3 }, "clusters 1": func(o *Options) { o.Clusters = 1 },
		"models 9": func(o *Options) { o.Models = 9 }, "share 1": func(o *Options) { o.Share = 1 }, "moves 0": func(o *Options) { o.Moves = 0 },
		"load-time": func(o *Options) { o.LoadTime = -1 }, "span 1s": func(o *Options) { o.Span = time.Second },
	} {
		o := DefaultOptions()
		spoil(&o)
		if _, err := Run(t.Context(), o, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if _, err := Run(t.Context(), DefaultOptions(), []string{"x"}, nil); err == nil || !strings.Contains(err.Error(), `scenario "x": want some of`) {
		t.Errorf("an unknown scenario: %v", err)
	}
}
