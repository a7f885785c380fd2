package frontend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"downbeat.dev/bench/stage"
	"downbeat.dev/frontend"
)

// variants returns emulated models of one family. More accurate models are slower.
func variants() map[string]string {
	all := map[string]string{}
	for i, v := range []string{"s", "m", "l"} {
		text := strings.ReplaceAll(classifier, `string_value: "1"`, fmt.Sprintf("string_value: %q", fmt.Sprint(1+i)))
		for key, value := range map[string]string{"family": "vehicle", "variant": v, "accuracy": fmt.Sprint(0.85 + 0.05*float64(i))} {
			text += fmt.Sprintf("parameters { key: %q value { string_value: %q } }\n", key, value)
		}
		all["vehicle-"+v] = text
	}
	return all
}

// TestFamilyAnswersWithAVariant shows that a request for a family learns which variant answered, and that a request
// for a variant, or for more accuracy, gets that or is refused at once. The scheduler and the backend are the real
// ones.
func TestFamilyAnswersWithAVariant(t *testing.T) {
	s, err := stage.Open(context.Background(), variants(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	waitFor(t, 30*time.Second, func() bool { m := s.Client.Model("vehicle", ""); return m != nil && len(m.Variants) == 3 })

	ask := func(model string, floor float64) (frontend.Result, error) {
		in, err := s.Client.Buffer(16)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Free()
		return s.Client.Do(context.Background(), frontend.Request{Model: model, Input: in, AccuracyFloor: floor})
	}
	for _, c := range []struct {
		model string
		floor float64
		least float64
		only  string
	}{{"vehicle", 0, 0.85, ""}, {"vehicle", 0.86, 0.9, ""}, {"vehicle", 0.95, 0.95, "vehicle-l"}, {"vehicle-s", 0, 0.85, "vehicle-s"}, {"vehicle-m", 0.9, 0.9, "vehicle-m"}} {
		r, err := ask(c.model, c.floor)
		if err != nil {
			t.Errorf("%s with floor %v: %v", c.model, c.floor, err)
			continue
		}
		if r.Accuracy < c.least-1e-9 || r.Version != "1" || !strings.HasPrefix(r.Model, "vehicle-") || c.only != "" && r.Model != c.only {
			t.Errorf("%s with floor %v was answered by %s version %s at %v", c.model, c.floor, r.Model, r.Version, r.Accuracy)
		}
		r.Release()
	}

	for model, floor := range map[string]float64{"vehicle": 0.96, "vehicle-s": 0.86} {
		if _, err := ask(model, floor); !errors.Is(err, frontend.ErrRejected) || !strings.Contains(err.Error(), "the best that is served has 0.") {
			t.Errorf("%s with floor %v: %v", model, floor, err)
		}
	}
	if _, err := ask("vehicle", 2); !errors.Is(err, frontend.ErrInvalid) {
		t.Errorf("a floor of 2: %v", err)
	}
}
