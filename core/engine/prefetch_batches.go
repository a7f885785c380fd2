package engine

import (
	"unsafe"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// A batch reads some memory of its model and its GPU, which is mostly not in the cache, in many places one after the other.
// So the memory of several batches is loaded together before the first of them reads it.

// reportsPrefetched is the number of reports whose memory is loaded together: some ten cache lines each.
const reportsPrefetched = 16

// prefetchFlights begins to load the memory that the reports of at most reportsPrefetched batches need. mu is held.
func (p *partition) prefetchFlights(m []wire.Done) {
	var flights [reportsPrefetched]*flight
	var memory [7 * reportsPrefetched]unsafe.Pointer
	words := memory[:0]
	n := 0
	for i := range m {
		// The number comes from the backend: it must not index beyond the list.
		if place := uint32(m[i].Batch); int(place) < len(p.batches) {
			f := &p.batches[place]
			words = append(words, unsafe.Pointer(f), unsafe.Pointer(&f.piece))
			flights[n] = f
			n++
		}
	}
	prefetch(words)

	// A flight names the memory that comes next.
	words = memory[:0]
	for _, f := range flights[:n] {
		if f.gpu != nil {
			words = append(words, unsafe.Pointer(f.gpu), unsafe.Pointer(&p.models[f.model]))
			if a := p.answersOf(f.model); a != nil {
				words = append(words, unsafe.Pointer(&a.counts), unsafe.Pointer(&a.firstCounts[fewVariants-1]))
			}
		}
	}
	prefetch(words)

	words = memory[:0]
	for _, f := range flights[:n] {
		if f.gpu != nil {
			words = append(words, unsafe.Pointer(f.gpu.gpuCounts))
			if c := &p.models[f.model]; len(f.requests) < len(c.sizes) {
				words = append(words, unsafe.Pointer(&c.sizes[len(f.requests)].ran))
			}
		}
	}
	prefetch(words)
}

// prefetchGrants begins to load the memory that the batches of grants need when they are sent. mu is held.
func (p *partition) prefetchGrants(e *Engine, grants []sched.Grant) {
	var memory [3 * grantsPrefetched]unsafe.Pointer
	words := memory[:0]
	for i := range grants[:min(len(grants), grantsPrefetched)] {
		g := &grants[i]
		words = append(words, unsafe.Pointer(e.gpu(g.GPU)))
		if int(g.Model) < len(p.models) {
			words = append(words, unsafe.Pointer(&p.models[g.Model]), unsafe.Pointer(p.answersOf(uint32(g.Model))))
		}
	}
	prefetch(words)
}

// grantsPrefetched is the number of grants whose memory is loaded together.
const grantsPrefetched = 16
