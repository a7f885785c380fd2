package kernels

import (
	"math"
)

// applyActivation applies an activation.
func applyActivation(kind Activation, x, a, b float64) float64 {
	// NaN passes through every clamp, so that an invalid result stays visible.
	switch kind {
	case Relu:
		return keepNaN(x, max(x, 0))
	case Clip:
		return keepNaN(x, min(max(x, a), b))
	case LeakyRelu:
		if x < 0 {
			return a * x
		}
	case Sigmoid:
		return 1 / (1 + math.Exp(-x))
	case Tanh:
		return math.Tanh(x)
	case HardSigmoid:
		return keepNaN(x, min(max(a*x+b, 0), 1))
	case HardSwish:
		return x * keepNaN(x, min(max(x/6+0.5, 0), 1))
	case Swish:
		return x / (1 + math.Exp(-x))
	case Gelu:
		return 0.5 * x * (1 + math.Erf(x/math.Sqrt2))
	case GeluTanh:
		return 0.5 * x * (1 + math.Tanh(0.7978845608028654*(x+0.044715*x*x*x)))
	default:
		return actMath(kind, x, a)
	}
	return x
}

func actMath(kind Activation, x, a float64) float64 {
	switch kind {
	case Erf:
		return math.Erf(x)
	case Exp:
		return math.Exp(x)
	case Log:
		return math.Log(x)
	case Sqrt:
		return math.Sqrt(x)
	case Neg:
		return -x
	case Abs:
		return math.Abs(x)
	case Reciprocal:
		return 1 / x
	case Floor:
		return math.Floor(x)
	case Ceil:
		return math.Ceil(x)
	case Elu:
		// Near 0 a difference of exponentials would lose digits.
		if x < 0 {
			return a * math.Expm1(x)
		}
	case Softplus:
		// This form does not overflow for any x.
		return math.Log1p(math.Exp(-math.Abs(x))) + max(x, 0)
	case Square:
		return x * x
	}
	return x
}

// keepNaN returns NaN if the input x is NaN, and y otherwise.
func keepNaN(x, y float64) float64 {
	if math.IsNaN(x) {
		return x
	}
	return y
}
