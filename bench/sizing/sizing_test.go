package sizing

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

func short() Options {
	o := DefaultOptions()
	o.Seeds, o.Span, o.GPUsMax = 2, 5*time.Second, 256
	return o
}

func linear(t *testing.T, alpha, beta, slo time.Duration) *profile.Profile {
	t.Helper()
	p, err := profile.Entry{Name: "m", Alpha: alpha, Beta: beta, SLO: slo}.Profile()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func only(name string, rate float64, slo time.Duration) Service {
	return Service{Name: name, Rate: rate, SLO: slo, Variants: []Variant{{Model: name, Accuracy: 1}}}
}

// TestTable4sClusterIsFound: Symphony's table 4 has 8 GPUs for some 5,000 requests/s of this profile within 25 ms. One
// GPU fewer loses more than a hundredth, and the answer is what a run of the simulator says.
func TestTable4sClusterIsFound(t *testing.T) {
	p := linear(t, 1053*time.Microsecond, 5072*time.Microsecond, 25*time.Millisecond)
	kind := Kind{Name: "1080ti", Profiles: map[string]*profile.Profile{"ResNet50": p}, Price: 2}
	answers, err := Size(context.Background(), []Service{only("ResNet50", 5169, 25*time.Millisecond)}, []Kind{kind}, short(), func(Answer) {})
	if err != nil {
		t.Fatal(err)
	}
	a := answers[0]
	if a.GPUs != 8 || a.Bad > 0.01 || a.Cost() != 16 || a.Why != "" {
		t.Fatalf("%+v: want 8 GPUs at 16 an hour", a)
	}
	for i, q := range a.Points {
		if i > 0 && q.GPUs <= a.Points[i-1].GPUs {
			t.Errorf("points out of order: %+v", a.Points)
		}
		if enough := q.Bad <= 0.01; enough != (q.GPUs >= 8) {
			t.Errorf("%+v: want enough from 8 GPUs on", q)
		}
	}
}

// TestAccuracyCostsGPUs: a family that may answer with its light variant needs fewer GPUs than one that may not, and
// says what accuracy that is.
func TestAccuracyCostsGPUs(t *testing.T) {
	slo := 50 * time.Millisecond
	kind := Kind{Name: "k", Profiles: map[string]*profile.Profile{"heavy": linear(t, 4*time.Millisecond, 8*time.Millisecond, slo), "light": linear(t, time.Millisecond, 2*time.Millisecond, slo)}}
	family := Service{Name: "f", Rate: 1000, SLO: slo, Variants: []Variant{{"heavy", 0.8}, {"light", 0.6}}}
	size := func(least float64) Answer {
		o := short()
		o.AccuracyMin = least
		answers, err := Size(context.Background(), []Service{family}, []Kind{kind}, o, func(Answer) {})
		if err != nil || answers[0].Why != "" {
			t.Fatalf("%v, %+v", err, answers)
		}
		return answers[0]
	}

	any, good := size(0), size(0.79)
	if any.GPUs >= good.GPUs || any.Accuracy >= good.Accuracy || good.Least < 0.79 || any.Least < 0.6 {
		t.Errorf("%d GPUs with accuracy %.3f, %d with %.3f: want more for more", any.GPUs, any.Accuracy, good.GPUs, good.Accuracy)
	}
}

// TestKindsThatAreNeverEnoughSayWhy: they come last, with the reason.
func TestKindsThatAreNeverEnoughSayWhy(t *testing.T) {
	slo := 20 * time.Millisecond
	fast, slow := linear(t, time.Millisecond, 5*time.Millisecond, slo), linear(t, 10*time.Millisecond, 30*time.Millisecond, time.Second)
	kinds := []Kind{
		{Name: "none", Profiles: map[string]*profile.Profile{}},
		{Name: "slow", Profiles: map[string]*profile.Profile{"m": slow}},
		{Name: "fast", Profiles: map[string]*profile.Profile{"m": fast}},
	}
	answers, err := Size(context.Background(), []Service{only("m", 500, slo)}, kinds, short(), func(Answer) {})
	if err != nil {
		t.Fatal(err)
	}
	if answers[0].Kind != "fast" || answers[0].GPUs < 1 {
		t.Errorf("%+v: want fast first", answers[0])
	}
	for _, a := range answers[1:] {
		want := map[string]string{"none": "no profile", "slow": "40ms for one request"}[a.Kind]
		if !strings.Contains(a.Why, want) {
			t.Errorf("%s: %q: want it to say %q", a.Kind, a.Why, want)
		}
	}

	few := short()
	few.GPUsMax = 1
	answers, err = Size(context.Background(), []Service{only("m", 5000, slo)}, kinds[2:], few, func(Answer) {})
	if err != nil || !strings.Contains(answers[0].Why, "1 GPUs are not enough") {
		t.Errorf("%v, %+v", err, answers)
	}

	var svg, table bytes.Buffer
	if err := Draw(&svg, answers, few, true); err != nil || !strings.Contains(svg.String(), "allowed") || strings.Contains(svg.String(), "NaN") {
		t.Errorf("%v: %s", err, svg.String())
	}
	if err := WriteTable(&table, answers, false); err != nil || !strings.Contains(table.String(), "not enough") {
		t.Errorf("%v: %s", err, table.String())
	}
}

func TestSizeRefuses(t *testing.T) {
	slo := 20 * time.Millisecond
	kind := Kind{Name: "k", Profiles: map[string]*profile.Profile{"m": linear(t, time.Millisecond, time.Millisecond, slo)}}
	for want, spoil := range map[string]func(*Service, *Options){
		"model m: rate 0":               func(s *Service, _ *Options) { s.Rate = 0 },
		"model m: rate NaN":             func(s *Service, _ *Options) { s.Rate = math.NaN() },
		"model m: rate +Inf":            func(s *Service, _ *Options) { s.Rate = math.Inf(1) },
		"rates sum up to":               func(s *Service, _ *Options) { s.Rate = 1e12 },
		"model m: SLO 0s":               func(s *Service, _ *Options) { s.SLO = 0 },
		"variant m: accuracy NaN":       func(s *Service, _ *Options) { s.Variants[0].Accuracy = math.NaN() },
		"model m: no variant":           func(s *Service, _ *Options) { s.Variants = nil },
		"bad share 0":                   func(_ *Service, o *Options) { o.BadMax = 0 },
		"least accuracy 2":              func(_ *Service, o *Options) { o.AccuracyMin = 2 },
		"most GPUs 0":                   func(_ *Service, o *Options) { o.GPUsMax = 0 },
		"seeds 0":                       func(_ *Service, o *Options) { o.Seeds = 0 },
		"span 0s":                       func(_ *Service, o *Options) { o.Span = 0 },
		"delays -1ns and 0s: want 0 to": func(_ *Service, o *Options) { o.Ctrl = -1 },
	} {
		s, o := only("m", 100, slo), short()
		spoil(&s, &o)
		if _, err := Size(context.Background(), []Service{s}, []Kind{kind}, o, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if _, err := Size(context.Background(), nil, []Kind{kind}, short(), nil); err == nil || !strings.Contains(err.Error(), "no model: want at least one") {
		t.Errorf("no services were accepted: %v", err)
	}
	if _, err := Size(context.Background(), []Service{only("m", 1, slo)}, nil, short(), nil); err == nil || !strings.Contains(err.Error(), "no kind of GPU") {
		t.Errorf("no kinds were accepted: %v", err)
	}
}

// TestSourcesAreRead: published zoos, files and a repository become kinds, and give SLOs to services without one.
func TestSourcesAreRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mine.csv")
	if err := os.WriteFile(file, []byte("model,alpha_ms,beta_ms,slo_ms\nResNet50,1,2,40\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(dir, "models", "ResNet50")
	if err := os.MkdirAll(filepath.Join(model, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := `platform: "emulated"
max_batch_size: 16
input [{name: "x", data_type: TYPE_FP32, dims: [4]}]
output [{name: "y", data_type: TYPE_FP32, dims: [4]}]
parameters [{key: "alpha_ms", value: {string_value: "1"}}, {key: "beta_ms", value: {string_value: "3"}}, {key: "slo_ms", value: {string_value: "70"}}]
`
	if err := os.WriteFile(filepath.Join(model, "config.pbtxt"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}

	services := []Service{only("ResNet50", 100, 0)}
	source := Source{Zoos: []string{"a100"}, Files: map[string]string{"mine": file}, Repo: filepath.Join(dir, "models")}
	kinds, err := source.Load(services)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range kinds {
		names = append(names, k.Name)
		if k.Profiles["ResNet50"] == nil {
			t.Errorf("kind %s has no profile", k.Name)
		}
	}
	if strings.Join(names, " ") != "a100 mine emulated" || services[0].SLO != 70*time.Millisecond {
		t.Errorf("kinds %v, SLO %v", names, services[0].SLO)
	}

	for want, s := range map[string]Source{
		`kind "b100"`:  {Zoos: []string{"b100"}},
		"twice":        {Zoos: []string{"a100"}, Files: map[string]string{"a100": file}},
		"no such file": {Files: map[string]string{"x": file + "x"}},
	} {
		if _, err := s.Load([]Service{only("ResNet50", 1, time.Second)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if _, err := (&Source{Zoos: []string{"a100"}}).Load([]Service{only("nobody", 1, 0)}); err == nil || !strings.Contains(err.Error(), "-slo nobody") {
		t.Errorf("error %v, want one that asks for an SLO", err)
	}
}
