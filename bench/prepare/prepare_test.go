package prepare

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestForms shows that a known time leaves no read to be refused, that overlap alone has many, and that a form changes
// neither arrivals nor hooks.
func TestForms(t *testing.T) {
	o := DefaultOptions()
	o.GPUs, o.Hooks, o.Loads, o.Span = 4, []time.Duration{5e6}, []float64{0.8}, 5*time.Second
	for _, o.Spread = range []float64{0, 0.5} {
		rows := map[string]Row{}
		if err := Run(context.Background(), o, func(r Row) { rows[r.Form] = r }); err != nil {
			t.Fatal(err)
		}
		for _, form := range Forms {
			if rows[form].Requests != rows["none"].Requests || rows[form].BadPct < rows["none"].BadPct {
				t.Errorf("%+v beside %+v", rows[form], rows["none"])
			}
		}
		hint, overlap := rows["hint"].RefusedPct, rows["overlap"].RefusedPct
		if o.Spread == 0 && hint != 0 || hint > 5 || overlap < 10 {
			t.Errorf("spread %v: %.2f %% refused with a hint, %.2f %% without", o.Spread, hint, overlap)
		}
		if o.Spread > 0 && rows["hint"].BadPct >= rows["hint-alone"].BadPct {
			t.Errorf("early hooks are told: %+v, and not told: %+v", rows["hint"], rows["hint-alone"])
		}
	}
}

func TestOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"gpus 0": func(o *Options) { o.GPUs = 0 }, "models 99": func(o *Options) { o.Models = 99 }, "spread -1": func(o *Options) { o.Spread = -1 },
		"trip 1s": func(o *Options) { o.Trip = time.Second }, "span 0s": func(o *Options) { o.Span = 0 }, "hooks 0s": func(o *Options) { o.Hooks[0] = 0 },
		"loads 9": func(o *Options) { o.Loads[0] = 9 }, `forms "x"`: func(o *Options) { o.Forms = []string{"x"} },
	} {
		o := DefaultOptions()
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewWriter(nil, "xml", nil); err == nil {
		t.Error("-o xml is accepted")
	}
}
