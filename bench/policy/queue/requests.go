// Package queue is the request queue of the baselines, for models of one variant (bench/policy) and of several
// (bench/policy/scaling). Each policy forms its own batches.
package queue

import "downbeat.dev/core/sim"

// Requests are numbers of requests in order of deadline, which with equal budgets is the order of arrival. The zero
// value is empty. Requests are not safe for concurrent use.
type Requests struct {
	numbers []int32
	head    int
	kept    []int32 // buffer of Cut
}

// Len returns the number of requests.
func (q *Requests) Len() int { return len(q.numbers) - q.head }

// At returns the ith request from the head.
func (q *Requests) At(i int) int32 { return q.numbers[q.head+i] }

// Push appends a request.
func (q *Requests) Push(r int32) {
	if q.head > 64 && q.head*2 > len(q.numbers) {
		q.numbers = q.numbers[:copy(q.numbers, q.numbers[q.head:])]
		q.head = 0
	}
	q.numbers = append(q.numbers, r)
}

// Insert inserts a request before those with later deadlines.
func (q *Requests) Insert(w *sim.World, r int32) {
	q.Push(r)
	all := q.numbers
	for i := len(all) - 1; i > q.head && w.Deadline(all[i-1]) > w.Deadline(r); i-- {
		all[i], all[i-1] = all[i-1], all[i]
	}
}

// Take removes and returns the first n requests, valid until the next Push or Insert.
func (q *Requests) Take(n int) []int32 {
	out := q.numbers[q.head : q.head+n]
	q.head += n
	return out
}

// Cut removes and returns n requests after the first skip, which stay. The result is valid until the next Push,
// Insert or Cut.
func (q *Requests) Cut(skip, n int) []int32 {
	if skip > 0 {
		q.kept = append(q.kept[:0], q.numbers[q.head:q.head+skip]...)
		copy(q.numbers[q.head:], q.numbers[q.head+skip:q.head+skip+n])
		copy(q.numbers[q.head+n:], q.kept)
	}
	return q.Take(n)
}

// DropBefore drops the first requests whose deadlines lie before a time.
func (q *Requests) DropBefore(w *sim.World, at sim.Time) {
	for q.Len() > 0 && w.Deadline(q.At(0)) < at {
		w.Drop(q.Take(1)[0])
	}
}
