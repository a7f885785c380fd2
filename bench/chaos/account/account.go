// Package account counts an experiment's requests independently. It shares no code with the product: it knows ids,
// deadlines and the bytes that an input asks for, and reads the callers' records.
//
// Every request has an id. Its caller writes a record when it sends the request, and one with the output's bytes when
// the request ends. A Ledger joins the records. It finds requests that never ended, ended twice, ended late, or ended
// with the output of another input.
package account

import (
	"encoding/binary"
	"math"
)

// outputFloats is the number of floats in an answer of an experiment's model.
const outputFloats = 16

// OutputBytes is the size of every right answer.
const OutputBytes = 4 * outputFloats

// Input fills in with the bytes of request id. No two ids have the same first eight bytes.
func Input(id uint64, in []byte) {
	// Compute each word once per eight bytes.
	var word [8]byte
	for i := range in {
		if i%8 == 0 {
			binary.LittleEndian.PutUint64(word[:], inputWord(id, uint64(i/8)))
		}
		in[i] = word[i%8]
	}
}

// inputWord returns word i of an input: the id and the index, mixed by SplitMix64's finalizer, which is one to one.
func inputWord(id, i uint64) uint64 {
	x := id + i*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// edgeBytes is the size of both ends of an input that determine an emulated GPU's answer.
const edgeBytes = 32

// Expected returns the right answer of an emulated GPU to request id with an input of size bytes: FNV-1a over both
// ends of the input seeds a sequence of integers below 1,000. By chance, one in 1,000 foreign answers is the same, so
// a ledger detects 99.9 % of them.
func Expected(id uint64, size int) []byte {
	hash := uint32(2166136261)
	add := func(from, to int) {
		for i := from; i < to; i++ {
			word := inputWord(id, uint64(i/8))
			hash = (hash ^ uint32(byte(word>>(8*(i%8))))) * 16777619
		}
	}

	// The two ends of a short input overlap; hash the overlap twice, as the emulated GPU does.
	add(0, min(edgeBytes, size))
	add(max(0, size-edgeBytes), size)

	out := make([]byte, OutputBytes)
	for i := range outputFloats {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(float32((hash+uint32(i))%1000)))
	}
	return out
}
