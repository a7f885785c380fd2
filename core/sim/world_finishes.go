package sim

import "downbeat.dev/core/sched"

// finishes is a min-heap of future events by time and number.
type finishes []finish

type finish struct {
	at     Time
	number int32 // of a GPU, a session, or the first request
	count  int32 // of consecutively numbered requests
}

func (a finish) before(b finish) bool { return a.at < b.at || a.at == b.at && a.number < b.number }

func (f finishes) next() Time {
	if len(f) == 0 {
		return sched.Never
	}
	return f[0].at
}

func (f *finishes) push(at Time, number int32) { f.pushAll(at, number, 1) }

// pushAll pushes count requests, the first of which is number.
func (f *finishes) pushAll(at Time, number, count int32) {
	it := finish{at, number, count}
	*f = append(*f, it)
	f.moveUp(len(*f)-1, it)
}

func (f *finishes) pop() int32 {
	h := *f
	top := h[0].number
	n := len(h) - 1
	last := h[n]

	if *f = h[:n]; n > 0 {
		f.replaceFirst(last)
	}
	return top
}

// replaceFirst replaces the first entry. Most entries belong near the end, so the hole moves down to a leaf first, at one
// comparison a level, and then the entry moves up.
func (f finishes) replaceFirst(it finish) {
	i := 0
	for c := 1; c < len(f); c = 2*i + 1 {
		if c+1 < len(f) && f[c+1].before(f[c]) {
			c++
		}
		f[i] = f[c]
		i = c
	}
	f.moveUp(i, it)
}

// moveUp puts an entry into the hole at i, or above it.
func (f finishes) moveUp(i int, it finish) {
	for i > 0 && it.before(f[(i-1)/2]) {
		f[i] = f[(i-1)/2]
		i = (i - 1) / 2
	}
	f[i] = it
}
