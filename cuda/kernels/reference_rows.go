package kernels

import (
	"math"

	"downbeat.dev/cuda"
)

// row is one line of a tensor seen as [outer, len, inner].
type row struct {
	x      []float32
	at     int
	stride int
	n      int
}

func (r row) get(i int) float64 { return float64(r.x[r.at+i*r.stride]) }

// rows calls f with each row of p.X and the row's number, which is outer·inner.
func rows(m *cuda.DeviceMemory, p *Rows, f func(i int, r row)) {
	inner, n := int(p.Inner), int(p.Len)
	x := floats(m, p.X, int(p.Outer)*n*inner)
	for i := range int(p.Outer) * inner {
		f(i, row{x: x, at: i/inner*n*inner + i%inner, stride: inner, n: n})
	}
}

func softmax(m *cuda.DeviceMemory, l cuda.Launch) {
	p := from[Rows](l.Params)
	y := floats(m, p.Y, int(p.Outer)*int(p.Len)*int(p.Inner))
	rows(m, &p, func(_ int, r row) {
		top, sum := math.Inf(-1), 0.0
		for i := range r.n {
			top = max(top, r.get(i))
		}
		for i := range r.n {
			sum += math.Exp(r.get(i) - top)
		}
		for i := range r.n {
			v := r.get(i) - top - math.Log(sum)
			if p.Op == 0 {
				v = math.Exp(r.get(i)-top) / sum
			}
			y[r.at+i*r.stride] = float32(v)
		}
	})
}

func reduce(m *cuda.DeviceMemory, l cuda.Launch) {
	p := from[Rows](l.Params)
	y := floats(m, p.Y, int(p.Outer)*int(p.Inner))
	rows(m, &p, func(i int, r row) {
		sum, square, low, high := 0.0, 0.0, math.Inf(1), math.Inf(-1)
		for j := range r.n {
			v := r.get(j)
			sum, square, low, high = sum+v, square+v*v, min(low, v), max(high, v)
		}
		switch p.Op {
		case ReduceMean:
			sum /= float64(r.n)
		case ReduceMax:
			sum = high
		case ReduceMin:
			sum = low
		case ReduceL2:
			sum = math.Sqrt(square)
		}
		y[i] = float32(sum)
	})
}

func argmax(m *cuda.DeviceMemory, l cuda.Launch) {
	p := from[Rows](l.Params)
	y := m.Int64s(cuda.Address(p.Y), int(p.Outer)*int(p.Inner))
	rows(m, &p, func(i int, r row) {
		best := 0
		for j := range r.n {
			if r.get(j) > r.get(best) {
				best = j
			}
		}
		y[i] = int64(best)
	})
}

func layerNorm(m *cuda.DeviceMemory, l cuda.Launch) {
	p := from[LayerNorm](l.Params)
	n, count := int(p.Len), int(p.Rows)*int(p.Len)
	x, y := floats(m, p.X, count), floats(m, p.Y, count)
	gamma, beta, res := floats(m, p.Gamma, n), optional(m, p.Beta, n), optional(m, p.Residual, count)
	line := make([]float64, n)
	for r := range int(p.Rows) {
		mean, square := 0.0, 0.0
		for i := range line {
			line[i] = float64(x[r*n+i])
			if res != nil {
				line[i] += float64(res[r*n+i])
			}
			mean += line[i] / float64(n)
		}
		for _, v := range line {
			square += (v - mean) * (v - mean) / float64(n)
		}
		for i, v := range line {
			v = (v - mean) / math.Sqrt(square+float64(p.Epsilon)) * float64(gamma[i])
			if beta != nil {
				v += float64(beta[i])
			}
			y[r*n+i] = float32(v)
		}
	}
}
