package gateway

import (
	"math"
	"strconv"

	"downbeat.dev/core/model"
)

// appendNumber appends one JSON number as a little-endian element of the datatype.
func appendNumber(dst, text []byte, datatype model.Datatype) ([]byte, bool) {
	switch datatype {
	case model.FP32:
		f, err := strconv.ParseFloat(viewText(text), 32)
		return le.AppendUint32(dst, math.Float32bits(float32(f))), err == nil
	case model.FP64:
		f, err := strconv.ParseFloat(viewText(text), 64)
		return le.AppendUint64(dst, math.Float64bits(f)), err == nil
	case model.FP16:
		f, err := strconv.ParseFloat(viewText(text), 64)

		h := toHalf(f)
		return le.AppendUint16(dst, h), err == nil && h&0x7c00 != 0x7c00
	case model.BF16:
		f, err := strconv.ParseFloat(viewText(text), 32)
		b := toBrain(float32(f))
		return le.AppendUint16(dst, b), err == nil && b&0x7f80 != 0x7f80
	case model.Uint64:
		n, err := strconv.ParseUint(viewText(text), 10, 64)
		return le.AppendUint64(dst, n), err == nil
	}

	// The other integer types fit an int64; check them against their own width.
	n, err := strconv.ParseInt(viewText(text), 10, 64)
	if err != nil {
		return dst, false
	}
	return appendInteger(dst, n, datatype)
}

// appendInteger appends n as an element of an integer datatype; false if it does not fit.
func appendInteger(dst []byte, n int64, datatype model.Datatype) ([]byte, bool) {
	// A value that survives the conversion to the datatype and back fits it.
	switch datatype {
	case model.Int64:
		return le.AppendUint64(dst, uint64(n)), true
	case model.Int32:
		return le.AppendUint32(dst, uint32(n)), n == int64(int32(n))
	case model.Uint32:
		return le.AppendUint32(dst, uint32(n)), n == int64(uint32(n))
	case model.Int16:
		return le.AppendUint16(dst, uint16(n)), n == int64(int16(n))
	case model.Uint16:
		return le.AppendUint16(dst, uint16(n)), n == int64(uint16(n))
	case model.Int8:
		return append(dst, byte(n)), n == int64(int8(n))
	case model.Uint8:
		return append(dst, byte(n)), n == int64(uint8(n))
	case model.Bool:
		return append(dst, byte(n)), n == 0 || n == 1
	}
	return dst, false
}

func appendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(dst, `"-Infinity"`...)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, bits)
}

func unsignedOf(e []byte) uint64 {
	switch len(e) {
	case 1:
		return uint64(e[0])
	case 2:
		return uint64(le.Uint16(e))
	case 4:
		return uint64(le.Uint32(e))
	}
	return le.Uint64(e)
}

func signedOf(e []byte) int64 {
	switch len(e) {
	case 1:
		return int64(int8(e[0]))
	case 2:
		return int64(int16(le.Uint16(e)))
	case 4:
		return int64(int32(le.Uint32(e)))
	}
	return int64(le.Uint64(e))
}

// valueOf returns an element as a number, for classification.
func valueOf(e []byte, datatype model.Datatype) float64 {
	switch datatype {
	case model.FP32:
		return float64(math.Float32frombits(le.Uint32(e)))
	case model.FP64:
		return math.Float64frombits(le.Uint64(e))
	case model.FP16:
		return fromHalf(le.Uint16(e))
	case model.BF16:
		return float64(math.Float32frombits(uint32(le.Uint16(e)) << 16))
	case model.Bool, model.Uint8, model.Uint16, model.Uint32, model.Uint64:
		return float64(unsignedOf(e))
	}
	return float64(signedOf(e))
}

// toHalf rounds to the nearest IEEE 754 binary16, ties to even.
func toHalf(f float64) uint16 {
	sign := uint16(math.Float64bits(f) >> 48 & 0x8000)
	f = math.Abs(f)
	switch {
	case math.IsNaN(f):
		return sign | 0x7e00
	case f >= 65520:
		// The largest half is 65504: numbers from halfway to 65536 on round to infinity.
		return sign | 0x7c00
	case f < 0x1p-14: // subnormal: units of 2^-24
		return sign | uint16(math.RoundToEven(f*0x1p24))
	}

	// Units that round up to 2048 carry into the exponent, as they must.
	_, exp := math.Frexp(f)                                  // f in [2^(exp-1), 2^exp)
	units := uint16(math.RoundToEven(math.Ldexp(f, 11-exp))) // 1024 … 2048
	return sign | (uint16(exp+14)<<10 + units - 1024)
}

func fromHalf(h uint16) float64 {
	sign, exp, frac := 1.0, int(h>>10&31), float64(h&1023)
	if h&0x8000 != 0 {
		sign = -1
	}

	// Exponent 0 means subnormals, 31 infinities and NaN.
	switch exp {
	case 0:
		return sign * frac * 0x1p-24
	case 31:
		if frac != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

// toBrain rounds to the nearest bfloat16, ties to even.
func toBrain(f float32) uint16 {
	b := math.Float32bits(f)

	// Rounding could turn a NaN into an infinity: set a bit of its fraction instead.
	if f != f {
		return uint16(b>>16) | 0x40
	}

	// Add half a unit less one, and one more if the kept part is odd, so that ties go to even.
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
