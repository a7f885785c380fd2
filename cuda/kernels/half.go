package kernels

import "math"

// ToHalf converts to IEEE binary16, rounding to nearest even; too large a number becomes infinity.
func ToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	switch exp := int(b>>23&0xff) - 127 + 15; {
	case b&0x7fffffff > 0x7f800000:
		// NaN stays NaN.
		return sign | 0x7e00
	case exp >= 31:
		// Too large, or infinite.
		return sign | 0x7c00
	case exp > 0:
		return sign | roundShift(b&0x7fffff|uint32(exp)<<23, 13)
	case exp > -11:
		// A subnormal number has no implied leading one, so shift the one in.
		return sign | roundShift(b&0x7fffff|0x800000, uint(14-exp))
	}

	// Less than half of the smallest subnormal number.
	return sign
}

// roundShift drops n bits, rounding to nearest even. A carry into the exponent gives the right result.
func roundShift(v uint32, n uint) uint16 {
	rest, half := v&(1<<n-1), uint32(1)<<(n-1)
	v >>= n
	if rest > half || rest == half && v&1 == 1 {
		v++
	}
	return uint16(v)
}

// FromHalf converts from IEEE binary16, exactly.
func FromHalf(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&0x3ff)
	switch exp {
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case 0:
		// A subnormal number has no implied leading one.
		f := float32(frac) / (1 << 24)
		if sign != 0 {
			return -f
		}
		return f
	}

	// 112 is the difference between the biases of the two exponents.
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// ToBFloat converts to bfloat16, rounding to nearest even.
func ToBFloat(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		// Rounding could turn a NaN into an infinity.
		return uint16(b>>16 | 0x40)
	}

	// Add half of the last kept bit, less one unit where that bit is even, so that ties go to even.
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBFloat converts from bfloat16, exactly.
func FromBFloat(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }
