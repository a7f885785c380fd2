package symphony

import (
	"context"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/bench/figure"
	"downbeat.dev/core/profile"
)

// printedProfile is a line of table 1: ms and MB.
type printedProfile struct {
	name                  string // in table 5
	alpha, beta           float64
	file, static, dynamic int
}

var table1 = []printedProfile{
	{"DenseNet121", 1.06, 10.31, 32, 99, 2172}, {"EfficientNetB0", 1.56, 5.58, 21, 88, 1519}, {"InceptionV3", 1.96, 8.77, 92, 230, 3386},
	{"MobileNet", 1.01, 2.39, 17, 84, 2653}, {"ResNet50", 2.05, 5.37, 98, 170, 2798}, {"VGG16", 2.73, 5.78, 528, 822, 6200},
}

// drawProfiles is table 1 beside table 5, on which all other figures run. Times and memory of our own models are
// measured on a host, by `downbeat profile` and `downbeat bench gpu`.
func drawProfiles(context.Context, *Inputs) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"model", "alpha_ms", "beta_ms", "beta_over_alpha", "file_mb", "static_mb", "dynamic_mb", "table5_alpha_ms", "table5_beta_ms"}}

	zoo := profile.GTX1080Ti()
	apart := 0.0
	for _, p := range table1 {
		k := slices.IndexFunc(zoo, func(e profile.Entry) bool { return e.Name == p.name })
		if k < 0 {
			return nil, fmt.Errorf("table 5 has no %s", p.name)
		}
		alpha, beta := float64(zoo[k].Alpha)/float64(time.Millisecond), float64(zoo[k].Beta)/float64(time.Millisecond)
		d.Add(p.name, p.alpha, p.beta, p.beta/p.alpha, p.file, p.static, p.dynamic, alpha, beta)
		apart = max(apart, abs(alpha-p.alpha), abs(beta-p.beta))
	}

	strong := 0
	for _, p := range table1 {
		if p.beta/p.alpha > 2 {
			strong++
		}
	}
	d.Claims = []figure.Claim{
		{What: "β/α > 2 for most models", Published: "6 of 6", Ours: fmt.Sprintf("%d of %d", strong, len(table1)), Verdict: figure.Judge(strong == len(table1))},
		{What: "the same models in tables 1 and 5", Published: "-", Ours: fmt.Sprintf("at most %.2f ms apart", apart), Verdict: figure.Judge(apart < 0.011)},
		{What: "static and dynamic memory", Published: "84 to 822 MB, 1.5 to 6.2 GB", Ours: "on the paper's GPU only", Verdict: figure.Beside,
			Why: "needs a GPU: downbeat bench gpu measures our models"},
	}
	return d, nil
}

func abs(x float64) float64 { return max(x, -x) }
