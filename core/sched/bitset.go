package sched

import "math/bits"

// bitset is a set of small numbers that finds its least member fast: one summary bit per word.
type bitset struct {
	word, sum []uint64
	n         int
}

func (s *bitset) grow(n int) {
	for len(s.word)*64 < n {
		s.word = append(s.word, 0)
	}
	for len(s.sum)*64 < len(s.word) {
		s.sum = append(s.sum, 0)
	}
}

func (s *bitset) set(i uint32) {
	w, b := i>>6, uint64(1)<<(i&63)
	if s.word[w]&b == 0 {
		s.word[w] |= b
		s.sum[w>>6] |= 1 << (w & 63)
		s.n++
	}
}

func (s *bitset) clear(i uint32) {
	w, b := i>>6, uint64(1)<<(i&63)
	if s.word[w]&b != 0 {
		s.word[w] &^= b
		if s.word[w] == 0 {
			s.sum[w>>6] &^= 1 << (w & 63)
		}
		s.n--
	}
}

// last returns the greatest member below n; -1 if there is none.
func (s *bitset) last(n int) int {
	for w := (n - 1) >> 6; w >= 0; w-- {
		x := s.word[w]
		if w == n>>6 {
			x &= 1<<(n&63) - 1
		}
		if x != 0 {
			return w<<6 + 63 - bits.LeadingZeros64(x)
		}
	}
	return -1
}

// first returns the least member; the set must not be empty.
func (s *bitset) first() uint32 {
	for i, w := range s.sum {
		if w != 0 {
			j := i<<6 + bits.TrailingZeros64(w)
			return uint32(j<<6 + bits.TrailingZeros64(s.word[j]))
		}
	}
	panic("sched: first of an empty set")
}

// all calls yield with each member, in order, until it returns false.
func (s *bitset) all(yield func(uint32) bool) {
	for i, word := range s.word {
		for ; word != 0; word &= word - 1 {
			if !yield(uint32(i<<6 + bits.TrailingZeros64(word))) {
				return
			}
		}
	}
}
