// Package account counts the requests of an experiment from outside. It shares no code with the product: it
// knows ids, deadlines and the bytes that an input asks for, and it reads what callers wrote down.
//
// Every request has an id. Its caller writes a record when it sends the request and one when the request ends,
// with the output's bytes. A Ledger joins them: it finds requests that never ended, ended twice, ended late, or
// ended with bytes that belong to another input.
package account

import (
	"encoding/binary"
	"math"
)

// outputFloats is how many numbers a model of an experiment answers.
const outputFloats = 16

// OutputBytes is the size of every right answer.
const OutputBytes = 4 * outputFloats

// Input fills in with the bytes of request id. No two ids have the same first eight bytes.
func Input(id uint64, in []byte) {
	// A word is computed once for the eight bytes that it fills.
	var word [8]byte
	for i := range in {
		if i%8 == 0 {
			binary.LittleEndian.PutUint64(word[:], inputWord(id, uint64(i/8)))
		}
		in[i] = word[i%8]
	}
}

// inputWord is word i of an input: the id and the place, mixed by SplitMix64's finalizer, which is one to one.
func inputWord(id, i uint64) uint64 {
	x := id + i*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// edgeBytes is how much of both ends of an input decides about an emulated GPU's answer.
const edgeBytes = 32

// Expected returns what an emulated GPU has to answer to request id with an input of size bytes: FNV-1a over
// both ends of the input seeds a run of whole numbers below 1,000. One in 1,000 foreign answers is the same by
// chance, so a ledger sees 99.9 % of them.
func Expected(id uint64, size int) []byte {
	hash := uint32(2166136261)
	add := func(from, to int) {
		for i := from; i < to; i++ {
			word := inputWord(id, uint64(i/8))
			hash = (hash ^ uint32(byte(word>>(8*(i%8))))) * 16777619
		}
	}

	// A short input's two ends overlap, and the overlap is hashed twice, as the emulated GPU does.
	add(0, min(edgeBytes, size))
	add(max(0, size-edgeBytes), size)

	out := make([]byte, OutputBytes)
	for i := range outputFloats {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(float32((hash+uint32(i))%1000)))
	}
	return out
}
