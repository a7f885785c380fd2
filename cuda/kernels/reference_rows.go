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

// eachRow calls f with each row of p.X and the row's number, which is outer·inner.
func eachRow(m *numbers, p *Rows, f func(i int, r row)) {
	inner, n := int(p.Inner), int(p.Len)
	x := m.readNumbers(p.X, int(p.Outer)*n*inner)

	for i := range int(p.Outer) * inner {
		f(i, row{x: x, at: i/inner*n*inner + i%inner, stride: inner, n: n})
	}
}

func runSoftmax(m *numbers, l cuda.Launch) {
	p := paramsOf[Rows](l.Params)
	y := m.resultRoom(p.Y, int(p.Outer)*int(p.Len)*int(p.Inner))
	eachRow(m, &p, func(_ int, r row) {
		// Subtract the largest value, because exponentials of large values would overflow.
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

func runReduce(m *numbers, l cuda.Launch) {
	p := paramsOf[Rows](l.Params)
	y := m.resultRoom(p.Y, int(p.Outer)*int(p.Inner))
	eachRow(m, &p, func(i int, r row) {
		// One pass computes the sums that the operations need.
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

func runArgmax(m *numbers, l cuda.Launch) {
	p := paramsOf[Rows](l.Params)
	y := m.Int64s(cuda.Address(p.Y), int(p.Outer)*int(p.Inner))
	eachRow(m, &p, func(i int, r row) {
		best := 0
		for j := range r.n {
			if r.get(j) > r.get(best) {
				best = j
			}
		}
		y[i] = int64(best)
	})
}

func layerNorm(m *numbers, l cuda.Launch) {
	p := paramsOf[LayerNorm](l.Params)
	n, count := int(p.Len), int(p.Rows)*int(p.Len)
	x, y := m.readNumbers(p.X, count), m.resultRoom(p.Y, count)
	gamma, beta, res := m.readNumbers(p.Gamma, n), m.readOptional(p.Beta, n), m.readOptional(p.Residual, count)

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

		// Use the differences from the mean: the mean of the squares minus the square of the mean would cancel.
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

func runAttention(m *numbers, l cuda.Launch) {
	p := paramsOf[Attention](l.Params)
	b, h, rows, cols, size := int(p.Batch), int(p.Heads), int(p.Rows), int(p.Cols), int(p.Size)

	reach := func(batch int64, head, row int32, n int) int {
		return spanOf(extent{batch, b}, extent{int64(head), h}, extent{int64(row), n}, extent{1, size})
	}

	q, k := m.readNumbers(p.Q, reach(p.QBatch, p.QHead, p.QRow, rows)), m.readNumbers(p.K, reach(p.KBatch, p.KHead, p.KRow, cols))
	v := m.readNumbers(p.V, reach(p.VBatch, p.VHead, p.VRow, cols))
	mask := m.readOptional(p.Mask, spanOf(extent{p.MBatch, b}, extent{int64(p.MHead), h}, extent{int64(p.MRow), rows}, extent{int64(p.MCol), cols}))
	y := m.resultRoom(p.Y, b*rows*h*size)

	score, out := make([]float64, cols), make([]float64, size)
	for i := range b * h * rows {
		bi, hi, r := i/(h*rows), i/rows%h, i%rows
		line, top, sum := q[bi*int(p.QBatch)+hi*int(p.QHead)+r*int(p.QRow):], math.Inf(-1), 0.0

		for c := range score {
			score[c] = dotProduct(line[:size], k[bi*int(p.KBatch)+hi*int(p.KHead)+c*int(p.KRow):]) * float64(p.Scale)
			if mask != nil {
				score[c] += float64(mask[bi*int(p.MBatch)+hi*int(p.MHead)+r*int(p.MRow)+c*int(p.MCol)])
			}
			top = max(top, score[c])
		}

		// As in the kernel, divide the line by the sum of exponentials at its end.
		clear(out)
		for c, s := range score {
			e := math.Exp(s - top)
			sum += e
			for j, x := range v[bi*int(p.VBatch)+hi*int(p.VHead)+c*int(p.VRow):][:size] {
				out[j] += e * float64(x)
			}
		}

		for j, x := range out {
			y[((bi*rows+r)*h+hi)*size+j] = float32(x / sum)
		}
	}
}

func dotProduct(a, b []float32) (sum float64) {
	for i, v := range a {
		sum += float64(v) * float64(b[i])
	}
	return sum
}
