package arrivals

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestPlanFollowsItsShape(t *testing.T) {
	for _, arrivals := range []string{"poisson", "constant", "gamma:0.2"} {
		s := Shape{Arrivals: arrivals, Popularity: "zipf:1", Rate: 2000, Span: 10 * time.Second, Seed: 7}
		plan, err := s.Plan(3)
		if err != nil {
			t.Fatal(err)
		}
		count := make([]float64, 3)
		for i, a := range plan {
			if i > 0 && a.At < plan[i-1].At || a.At >= s.Span {
				t.Fatalf("%s: arrival %d at %v is out of order or past the end", arrivals, i, a.At)
			}
			count[a.Model]++
		}
		if math.Abs(float64(len(plan))-20000) > 2000 {
			t.Errorf("%s: %d arrivals, want about 20000", arrivals, len(plan))
		}
		if r := count[0] / count[1]; r < 1.7 || r > 2.3 {
			t.Errorf("%s: the first model is %.2f times as popular as the second, want 2", arrivals, r)
		}
		again, _ := s.Plan(3)
		if len(again) != len(plan) || again[100] != plan[100] {
			t.Errorf("%s: the same seed gave another plan", arrivals)
		}
	}
}

func TestBadShapesNameTheField(t *testing.T) {
	good := Shape{Arrivals: "poisson", Popularity: "even", Rate: 1, Span: time.Second}
	for want, change := range map[string]func(*Shape){
		`arrivals "gamma"`:      func(s *Shape) { s.Arrivals = "gamma" },
		`arrivals "gamma:NaN"`:  func(s *Shape) { s.Arrivals = "gamma:NaN" },
		`arrivals "bursts"`:     func(s *Shape) { s.Arrivals = "bursts" },
		`popularity "zipf:-1"`:  func(s *Shape) { s.Popularity = "zipf:-1" },
		"rate NaN":              func(s *Shape) { s.Rate = math.NaN() },
		"rate 0":                func(s *Shape) { s.Rate = 0 },
		"rate 1e+12":            func(s *Shape) { s.Rate = 1e12 },
		"rate 1 over -1s: want": func(s *Shape) { s.Span = -time.Second },
	} {
		s := good
		change(&s)
		if _, err := s.Plan(1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %s", err, want)
		}
	}
}

func TestReadTrace(t *testing.T) {
	plan, models, err := ReadTrace(strings.NewReader("arrival_us,model\n0,a\n\n# pause\n1500,b\n1500,a\n"))
	if err != nil || len(plan) != 3 || len(models) != 2 || plan[1] != (Arrival{1500 * time.Microsecond, 1}) {
		t.Fatalf("got %v %v %v", plan, models, err)
	}
	for text, want := range map[string]string{
		"":                       "no arrivals",
		"5,a\n4,a\n":             "line 2: 4 µs is before",
		"x,a\n":                  "line 1",
		"5\n":                    "line 1",
		"-5,a\n":                 "line 1",
		"5,\n":                   "line 1",
		"99999999999999999999,a": "line 1",
	} {
		if _, _, err := ReadTrace(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want it to say %s", text, err, want)
		}
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add("arrival_us,model\n0,a\n1,b\n")
	f.Add("0,\xff\n")
	f.Fuzz(func(t *testing.T, text string) {
		plan, models, err := ReadTrace(strings.NewReader(text))
		if (err == nil) != (len(plan) > 0) {
			t.Fatalf("%d arrivals and error %v", len(plan), err)
		}
		for i, a := range plan {
			if int(a.Model) >= len(models) || i > 0 && a.At < plan[i-1].At {
				t.Fatalf("arrival %d: %v", i, a)
			}
		}
	})
}

// TestSmallPlans: a plan that expects few requests may have none, or end long before its span.
func TestSmallPlans(t *testing.T) {
	for seed := range uint64(200) {
		plan, err := Shape{Rate: 4, Span: time.Second, Arrivals: "poisson", Popularity: "even", Seed: seed}.Plan(1)
		if err != nil || len(plan) > 20 {
			t.Errorf("seed %d: %d requests, %v", seed, len(plan), err)
		}
	}
}
