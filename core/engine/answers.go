package engine

import (
	"slices"

	"downbeat.dev/core/sched"
)

// answers is what a partition knows of a family: which models its variants are, and how often each answered. The
// partition's lock guards it.
type answers struct {
	variants []variantPlace // by variant
	counts   []answerCount  // of every model that was a variant since the family was made
	marks    [marksKept]answerMark
}

// variantPlace is which model a variant is, and where in counts it is counted.
type variantPlace struct {
	model uint32
	place int
}

// answerCount is how many requests got a batch of a model.
type answerCount struct {
	model    uint32
	requests uint64
}

// answerMark is what had been counted at a moment.
type answerMark struct {
	requests []uint64 // by place in counts; what is beyond had none
	dropped  dropCounts
}

// setVariants notes the models that a family's variants are; none: it is a model by itself. mu is held.
func (p *partition) setVariants(id uint32, variants []uint32) {
	if len(variants) == 0 {
		delete(p.families, id)
		return
	}
	if p.families == nil {
		p.families = map[uint32]*answers{}
	}
	a := p.families[id]
	if a == nil {
		a = &answers{}
		p.families[id] = a
	}

	// Counts stay by model: a variant that leaves and comes back goes on from its own.
	a.variants = a.variants[:0]
	for _, model := range variants {
		place := slices.IndexFunc(a.counts, func(c answerCount) bool { return c.model == model })
		if place < 0 {
			place = len(a.counts)
			a.counts = append(a.counts, answerCount{model: model})
		}
		a.variants = append(a.variants, variantPlace{model, place})
	}
}

// answerOf returns the number that a GPU's backend knows a batch's model by, what names the model to the frontend where
// it was not asked for by itself, and whether the GPU has it loaded. mu is held.
func (p *partition) answerOf(g *gpu, b *sched.Batch) (number, answer uint32, ok bool) {
	id := b.Model
	if len(p.families) > 0 {
		if f := p.families[uint32(id)]; f != nil {
			id = sched.ModelID(f.variants[b.Variant].model)
			answer = uint32(id) + 1
		}
	}
	number, ok = g.runs(id)
	return number, answer, ok
}

func (a *answers) countAnswers(variant uint16, requests int) {
	a.counts[a.variants[variant].place].requests += uint64(requests)
}

// mark keeps what is counted now under a slot's number.
func (a *answers) mark(slot int, c *modelCount) {
	m := &a.marks[slot]
	m.requests, m.dropped = m.requests[:0], c.dropCounts()
	for i := range a.counts {
		m.requests = append(m.requests, a.counts[i].requests)
	}
}

// markAll has a family's counts begin anew: what it did before is older than all that is told of. mu is held.
func (p *partition) markAll(id uint32) {
	if a := p.families[id]; a != nil {
		for slot := range a.marks {
			a.mark(slot, &p.models[id])
		}
	}
}

// since returns how many requests got a batch of each model, by place in counts, and how many were dropped, since a
// slot's mark.
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
