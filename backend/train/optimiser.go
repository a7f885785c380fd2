package train

import "math"

// Optimiser is the rule by which weights follow gradients.
type Optimiser uint8

const (
	// Adam is Kingma and Ba's (2014) with decoupled weight decay (Loshchilov and Hutter 2017).
	Adam Optimiser = iota
	// Momentum is stochastic gradient descent with momentum 0.9.
	Momentum
)

const (
	beta1   = 0.9
	beta2   = 0.99
	epsilon = 1e-7
	decay   = 1e-3 // of weights per step, times the rate
	normMax = 10   // longer gradients are scaled down to it
)

// stepRule writes one update and returns the new weights and moments.
type stepRule func(g *graph, w, grad, m1, m2, rate string) (string, string, string)

func (o Optimiser) stepRuleOf() stepRule {
	if o == Momentum {
		return momentumStep
	}
	return adamStep
}

// CorrectedRate corrects Adam's learning rate for its moments' start at 0. t counts from 1.
func (o Optimiser) CorrectedRate(lr float64, t int) float64 {
	if o == Momentum {
		return lr
	}
	return lr * math.Sqrt(1-math.Pow(beta2, float64(t))) / (1 - math.Pow(beta1, float64(t)))
}

func adamStep(g *graph, w, grad, m1, m2, rate string) (string, string, string) {
	m1 = interpolate(g, m1, grad, beta1)
	m2 = interpolate(g, m2, g.Node("Mul", []string{grad, grad}), beta2)
	root := g.Node("Add", []string{g.Node("Sqrt", []string{m2}), g.Scalar(epsilon)})

	// The decay applies to the weights directly, not to the moments (Loshchilov and Hutter).
	step := g.Node("Add", []string{g.Node("Div", []string{m1, root}), g.Node("Mul", []string{w, g.Scalar(decay)})})
	return g.Node("Sub", []string{w, g.Node("Mul", []string{step, rate})}), m1, m2
}

func momentumStep(g *graph, w, grad, m1, m2, rate string) (string, string, string) {
	m1 = g.Node("Add", []string{g.Node("Mul", []string{m1, g.Scalar(0.9)}), grad})
	return g.Node("Sub", []string{w, g.Node("Mul", []string{m1, rate})}), m1, m2
}

// interpolate returns keep·old + (1−keep)·new.
func interpolate(g *graph, old, new string, keep float32) string {
	return g.Node("Add", []string{g.Node("Mul", []string{old, g.Scalar(keep)}), g.Node("Mul", []string{new, g.Scalar(1 - keep)})})
}

// clipNorm scales a longer gradient down to length normMax.
func clipNorm(g *graph, grad string) string {
	// A gradient shorter than the limit is divided and multiplied by the limit, which avoids a branch in the graph.
	norm := g.Node("Sqrt", []string{sumOf(g, g.Node("Mul", []string{grad, grad}))})
	ratio := g.Node("Div", []string{g.Scalar(normMax), g.Node("Max", []string{norm, g.Scalar(normMax)})})
	return g.Node("Mul", []string{grad, ratio})
}
