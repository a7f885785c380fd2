package emu

import (
	"encoding/binary"
	"math"

	"downbeat.dev/backend/device"
)

// seedBytes is how much of each end of a row's inputs decides about its outputs.
const seedBytes = 32

// seed hashes (FNV-1a) both ends of every input of a row.
func seed(m *device.Model, row func(k int) []byte) uint32 {
	h := uint32(2166136261)
	for k := range m.Inputs {
		in := row(k)
		for _, part := range [2][]byte{in[:min(seedBytes, len(in))], in[max(0, len(in)-seedBytes):]} {
			for _, c := range part {
				h = (h ^ uint32(c)) * 16777619
			}
		}
	}
	return h
}

// Pattern returns the output payload of a row whose input payload is in: what a batch answers.
func Pattern(m *device.Model, in []byte) []byte {
	h := seed(m, func(k int) []byte { return in[m.Inputs[k].Offset:][:m.Inputs[k].Bytes] })
	out := make([]byte, m.OutBytes)
	for k, t := range m.Outputs {
		fill(out[t.Offset:][:t.Bytes], t.Datatype, h+uint32(k))
	}
	return out
}

// fill writes small whole numbers that are valid in every datatype: element j is (h+j) mod 1000 in
// 16 bits and more, mod 100 in 8 bits, and its lowest bit as a BOOL.
func fill(out []byte, datatype string, h uint32) {
	switch datatype {
	case "FP32":
		for j := 0; j+4 <= len(out); j += 4 {
			binary.LittleEndian.PutUint32(out[j:], math.Float32bits(float32((h+uint32(j/4))%1000)))
		}
	case "FP64":
		for j := 0; j+8 <= len(out); j += 8 {
			put(out[j:], math.Float64bits(float64((h+uint32(j/8))%1000)), 8)
		}
	case "FP16":
		for j := 0; j+2 <= len(out); j += 2 {
			put(out[j:], uint64(half((h+uint32(j/2))%1000)), 2)
		}
	case "BF16":
		for j := 0; j+2 <= len(out); j += 2 {
			put(out[j:], uint64(math.Float32bits(float32((h+uint32(j/2))%100))>>16), 2)
		}
	case "BOOL":
		for j := range out {
			out[j] = byte(h+uint32(j)) & 1
		}
	case "INT8", "UINT8":
		for j := range out {
			out[j] = byte((h + uint32(j)) % 100)
		}
	default:
		fillInts(out, datatype, h)
	}
}

func fillInts(out []byte, datatype string, h uint32) {
	size := 4
	switch datatype {
	case "INT16", "UINT16":
		size = 2
	case "INT64", "UINT64":
		size = 8
	}
	for j := 0; j+size <= len(out); j += size {
		put(out[j:], uint64((h+uint32(j/size))%1000), size)
	}
}

// put writes the low size bytes of v, little-endian.
func put(b []byte, v uint64, size int) {
	for i := range size {
		b[i] = byte(v >> (8 * i))
	}
}

// half returns the IEEE 754 half-precision bits of a whole number below 2048, which it holds exactly.
func half(n uint32) uint16 {
	if n == 0 {
		return 0
	}
	f := math.Float32bits(float32(n))
	exponent := (f>>23)&0xff - 127 + 15
	return uint16(exponent<<10 | (f>>13)&0x3ff)
}
