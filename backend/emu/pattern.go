package emu

import (
	"encoding/binary"
	"math"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
)

// seedBytes is the length of each end of a row's inputs that determines its outputs.
const seedBytes = 32

// hashInputs hashes (FNV-1a) both ends of every input of a row.
func hashInputs(m *device.Model, row func(k int) []byte) uint32 {
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

// Pattern returns the output payload for the input payload in: the row of a batch's answer.
func Pattern(m *device.Model, in []byte) []byte {
	h := hashInputs(m, func(k int) []byte { return in[m.Inputs[k].Offset:][:m.Inputs[k].Bytes] })
	out := make([]byte, m.OutBytes)
	for k, t := range m.Outputs {
		fillPattern(out[t.Offset:][:t.Bytes], t.Datatype, h+uint32(k))
	}
	return out
}

// fillPattern writes small whole numbers that are valid in every datatype: element j is (h+j) mod 1000 in 16 bits and
// more, mod 100 in 8 bits, and its lowest bit as a BOOL.
func fillPattern(out []byte, datatype model.Datatype, h uint32) {
	switch datatype {
	case model.FP32:
		for j := 0; j+4 <= len(out); j += 4 {
			binary.LittleEndian.PutUint32(out[j:], math.Float32bits(float32((h+uint32(j/4))%1000)))
		}
	case model.FP64:
		for j := 0; j+8 <= len(out); j += 8 {
			putBytes(out[j:], math.Float64bits(float64((h+uint32(j/8))%1000)), 8)
		}
	case model.FP16:
		// Whole numbers are exact up to 2048.
		for j := 0; j+2 <= len(out); j += 2 {
			putBytes(out[j:], uint64(halfBits((h+uint32(j/2))%1000)), 2)
		}
	case model.BF16:
		// Whole numbers are exact up to 256.
		for j := 0; j+2 <= len(out); j += 2 {
			putBytes(out[j:], uint64(math.Float32bits(float32((h+uint32(j/2))%100))>>16), 2)
		}
	case model.Bool:
		for j := range out {
			out[j] = byte(h+uint32(j)) & 1
		}
	case model.Int8, model.Uint8:
		for j := range out {
			out[j] = byte((h + uint32(j)) % 100)
		}
	default:
		fillInts(out, datatype, h)
	}
}

func fillInts(out []byte, datatype model.Datatype, h uint32) {
	size := 4
	switch datatype {
	case model.Int16, model.Uint16:
		size = 2
	case model.Int64, model.Uint64:
		size = 8
	}

	for j := 0; j+size <= len(out); j += size {
		putBytes(out[j:], uint64((h+uint32(j/size))%1000), size)
	}
}

// putBytes writes the low size bytes of v, little-endian.
func putBytes(b []byte, v uint64, size int) {
	for i := range size {
		b[i] = byte(v >> (8 * i))
	}
}

// halfBits returns the IEEE 754 half-precision bits of a whole number below 2048, which are exact.
func halfBits(n uint32) uint16 {
	if n == 0 {
		return 0
	}
	f := math.Float32bits(float32(n))
	// The exponent's bias decreases from 127 to 15.
	exponent := (f>>23)&0xff - 127 + 15
	return uint16(exponent<<10 | (f>>13)&0x3ff)
}
