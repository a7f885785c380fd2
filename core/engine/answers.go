package engine

import (
	"slices"

	"downbeat.dev/core/sched"
)

// answers holds a family's state in a partition: the models of its variants, and how often each answered. The
// partition's lock guards it.
type answers struct {
	// What a batch reads when it is sent, in one cache line.
	variants      []variantPlace            // by variant
	firstVariants [fewVariants]variantPlace // the memory of variants while they are few
	marks         *[marksKept]answerMark    // elsewhere: they are read every five seconds, and would spread the families over many pages

	// What a batch reads when it is done, in two.
	counts      []answerCount            // of every model that has been a variant since the family was made
	firstCounts [fewVariants]answerCount // the memory of counts while they are few
	_           [40]byte
}

// fewVariants is how many variants most families have at most.
const fewVariants = 4

// variantPlace is a variant's model and its place in counts.
type variantPlace struct{ model, place uint32 }

// answerCount is how many requests a model answered.
type answerCount struct {
	model    uint32
	requests uint64
}

// answerMark is a copy of the counts at one moment.
type answerMark struct {
	requests []uint64 // by place in counts; places added later count as 0
	dropped  dropCounts
}

// setVariants sets the models of a family's variants; no variants: it is a plain model. mu is held.
func (p *partition) setVariants(id uint32, variants []uint32) {
	if len(variants) == 0 {
		p.forgetVariants(id)
		return
	}
	for int(id) >= len(p.families) {
		p.families = append(p.families, nil)
	}

	a := p.families[id]
	if a == nil {
		a = &answers{marks: new([marksKept]answerMark)}
		a.variants, a.counts = a.firstVariants[:0], a.firstCounts[:0]
		p.families[id] = a
	}

	// Counts stay by model: a variant that leaves and returns continues its own.
	a.variants = a.variants[:0]
	for _, model := range variants {
		place := slices.IndexFunc(a.counts, func(c answerCount) bool { return c.model == model })
		if place < 0 {
			place = len(a.counts)
			a.counts = append(a.counts, answerCount{model: model})
		}
		a.variants = append(a.variants, variantPlace{model, uint32(place)})
	}
}

// forgetVariants records that a model is not a family. mu is held.
func (p *partition) forgetVariants(id uint32) {
	if int(id) < len(p.families) {
		p.families[id] = nil
	}
}

// answersOf returns a family's answers; nil for a plain model. mu is held.
func (p *partition) answersOf(id uint32) *answers {
	if int(id) < len(p.families) {
		return p.families[id]
	}
	return nil
}

// answerOf returns the number by which a GPU's backend knows a batch's model, the id that tells the frontend which
// variant answered (0 for a plain model), and whether the GPU has the model loaded. mu is held.
func (p *partition) answerOf(g *gpu, b *sched.Batch) (number, answer uint32, ok bool) {
	id := b.Model
	if f := p.answersOf(uint32(id)); f != nil {
		id = sched.ModelID(f.variants[b.Variant].model)
		answer = uint32(id) + 1
	}
	number, ok = g.numberOnBackend(id)
	return number, answer, ok
}

// countAnswers counts requests that a batch answered. A batch may end after its model is made a family anew, with other
// variants or none.
func (a *answers) countAnswers(place uint32, requests int) {
	if int(place) < len(a.counts) {
		a.counts[place].requests += uint64(requests)
	}
}

// mark stores the current counts in a slot.
func (a *answers) mark(slot int, c *modelCount) {
	m := &a.marks[slot]
	m.requests, m.dropped = m.requests[:0], c.dropCounts()
	for i := range a.counts {
		m.requests = append(m.requests, a.counts[i].requests)
	}
}

// markAll restarts a family's counts: everything before is older than any span that is reported. mu is held.
func (p *partition) markAll(id uint32) {
	if a := p.answersOf(id); a != nil {
		for slot := range a.marks {
			a.mark(slot, &p.models[id])
		}
	}
}

// since returns the requests per model, by place in counts, and the drops since a slot's mark.
func (a *answers) since(slot int, c *modelCount) (requests []uint64, dropped dropCounts) {
	from := &a.marks[slot]
	dropped = c.dropCounts()
	for i := range dropped {
		dropped[i] -= from.dropped[i]
	}
	for i := range a.counts {
		n := a.counts[i].requests
		if i < len(from.requests) {
			n -= from.requests[i]
		}
		requests = append(requests, n)
	}
	return requests, dropped
}
