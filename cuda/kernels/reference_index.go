package kernels

import (
	"math"

	"downbeat.dev/cuda"
)

// offsetAt converts a dense index to an offset by strides.
func offsetAt(i int, dims, strides *[RankMax]int32) (off int) {
	for d := RankMax - 1; d >= 0; d-- {
		n := int(dims[d])
		off += i % n * int(strides[d])
		i /= n
	}
	return off
}

// reachOf returns the number of elements that the strides span; no stride is negative.
func reachOf(dims, strides *[RankMax]int32) int {
	last := 0
	for d := range dims {
		last += (int(dims[d]) - 1) * int(strides[d])
	}
	return last + 1
}

func runBinary(m *numbers, l cuda.Launch) {
	p := paramsOf[Binary](l.Params)
	a, b := m.readNumbers(p.P, reachOf(&p.Dims, &p.PS)), m.readNumbers(p.Q, reachOf(&p.Dims, &p.QS))
	y := m.resultRoom(p.Y, int(p.Count))

	for i := range y {
		v := binaryOp(p.Op, float64(a[offsetAt(i, &p.Dims, &p.PS)]), float64(b[offsetAt(i, &p.Dims, &p.QS)]))
		y[i] = float32(applyActivation(p.Act, v, float64(p.A), float64(p.B)))
	}
}

func binaryOp(op int32, a, b float64) float64 {
	switch op {
	case Add:
		return a + b
	case Sub:
		return a - b
	case Mul:
		return a * b
	case Div:
		return a / b
	case Pow:
		return math.Pow(a, b)
	case Min:
		return min(a, b)
	default:
		return max(a, b)
	}
}

func binaryInt64(m *cuda.DeviceMemory, l cuda.Launch) {
	p := paramsOf[Binary](l.Params)
	a := m.Int64s(cuda.Address(p.P), reachOf(&p.Dims, &p.PS))
	b := m.Int64s(cuda.Address(p.Q), reachOf(&p.Dims, &p.QS))
	y := m.Int64s(cuda.Address(p.Y), int(p.Count))

	for i := range y {
		u, v := a[offsetAt(i, &p.Dims, &p.PS)], b[offsetAt(i, &p.Dims, &p.QS)]
		switch p.Op {
		case Add:
			y[i] = u + v
		case Sub:
			y[i] = u - v
		case Mul:
			y[i] = u * v
		case Div:
			// Divisors may come from a request, so zero must not end the process.
			if v != 0 {
				y[i] = u / v
			} else {
				y[i] = 0
			}
		case Min:
			y[i] = min(u, v)
		default:
			y[i] = max(u, v)
		}
	}
}

func runWhere(m *numbers, l cuda.Launch) {
	p := paramsOf[Where](l.Params)
	c := m.Bytes(cuda.Address(p.Cond), int64(reachOf(&p.Dims, &p.CS)))
	a, b := m.readNumbers(p.P, reachOf(&p.Dims, &p.PS)), m.readNumbers(p.Q, reachOf(&p.Dims, &p.QS))
	y := m.resultRoom(p.Y, int(p.Count))

	for i := range y {
		if c[offsetAt(i, &p.Dims, &p.CS)] != 0 {
			y[i] = a[offsetAt(i, &p.Dims, &p.PS)]
		} else {
			y[i] = b[offsetAt(i, &p.Dims, &p.QS)]
		}
	}
}

func copyStrided(m *cuda.DeviceMemory, l cuda.Launch) {
	p := paramsOf[Copy](l.Params)
	size := int64(p.Size)

	for i := range int(p.Count) {
		src := cuda.Address(int64(p.X) + int64(offsetAt(i, &p.Dims, &p.XS))*size)
		dst := cuda.Address(int64(p.Y) + int64(offsetAt(i, &p.Dims, &p.YS))*size)
		copy(m.Bytes(dst, size), m.Bytes(src, size))
	}
}

func runGather(m *cuda.DeviceMemory, l cuda.Launch) {
	p := paramsOf[Gather](l.Params)
	slice := int64(p.Inner) * int64(p.Size)
	x := m.Bytes(cuda.Address(p.X), int64(p.Outer)*int64(p.Len)*slice)
	y := m.Bytes(cuda.Address(p.Y), int64(p.Outer)*int64(p.Picks)*slice)

	for i := range int64(p.Outer) * int64(p.Picks) {
		o, k := i/int64(p.Picks), i%int64(p.Picks)

		var index int64
		if p.IndexSize == 8 {
			index = m.Int64s(cuda.Address(p.Index), int(p.Picks))[k]
		} else {
			index = int64(m.Int32s(cuda.Address(p.Index), int(p.Picks))[k])
		}

		// A negative index counts from the end. An index outside the axis gives NaN, but only for its own slice,
		// because indices come from a request.
		if index < 0 {
			index += int64(p.Len)
		}

		dst := y[i*slice : (i+1)*slice]
		if index < 0 || index >= int64(p.Len) {
			for j := range dst {
				dst[j] = 0xff
			}
			continue
		}

		from := (o*int64(p.Len) + index) * slice
		copy(dst, x[from:from+slice])
	}
}

func runCast(m *cuda.DeviceMemory, l cuda.Launch) {
	p := paramsOf[Cast](l.Params)
	n := int(p.Count)
	reaches := reachOf(&p.Dims, &p.XS)

	for i := range n {
		v := loadNumber(m, p.X, p.From, reaches, offsetAt(i, &p.Dims, &p.XS))
		storeNumber(m, p.Y, p.To, n, i, v)
	}
}

// number is an element during a conversion between two types; integers keep all their bits.
type number struct {
	f       float64
	i       int64
	integer bool
}

func loadNumber(m *cuda.DeviceMemory, p uint64, t int32, n, i int) number {
	a := cuda.Address(p)
	switch t {
	case Float32:
		return number{f: float64(m.Float32s(a, n)[i])}
	case Float16:
		return number{f: float64(FromHalf(m.Uint16s(a, n)[i]))}
	case BFloat16:
		return number{f: float64(FromBFloat(m.Uint16s(a, n)[i]))}
	case Int32:
		return number{i: int64(m.Int32s(a, n)[i]), integer: true}
	case Int64:
		return number{i: m.Int64s(a, n)[i], integer: true}
	}
	return number{i: int64(m.Bytes(a, int64(n))[i]), integer: true}
}

func storeNumber(m *cuda.DeviceMemory, p uint64, t int32, n, i int, v number) {
	a := cuda.Address(p)

	f, k := v.f, v.i
	if v.integer {
		f = float64(v.i)
	} else {
		k = int64(v.f) // truncates, as C does
	}

	switch t {
	case Float32:
		m.Float32s(a, n)[i] = float32(f)
	case Float16:
		m.Uint16s(a, n)[i] = ToHalf(float32(f))
	case BFloat16:
		m.Uint16s(a, n)[i] = ToBFloat(float32(f))
	case Int32:
		m.Int32s(a, n)[i] = int32(k)
	case Int64:
		m.Int64s(a, n)[i] = k
	case Uint8:
		m.Bytes(a, int64(n))[i] = byte(k)
	default:
		// A bool: every value except 0 is true.
		b := byte(0)
		if f != 0 {
			b = 1
		}
		m.Bytes(a, int64(n))[i] = b
	}
}
