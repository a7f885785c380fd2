package engine

import "downbeat.dev/core/sched"

// answers is what a partition knows of a family: which models its variants are, and how often each answered. The
// partition's lock guards it.
type answers struct {
	variants []uint32          // by variant: the model's id
	requests map[uint32]uint64 // by model id: in batches sent since the family was made
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
	if p.families[id] == nil {
		p.families[id] = &answers{requests: map[uint32]uint64{}}
	}
	p.families[id].variants = variants
}

// answerOf returns the number that a GPU's backend knows a batch's model by, what names the model to the frontend where
// it was not asked for by itself, and whether the GPU has it loaded. mu is held.
func (p *partition) answerOf(g *gpu, b *sched.Batch) (number, answer uint32, ok bool) {
	id := b.Model
	if len(p.families) > 0 {
		if f := p.families[uint32(id)]; f != nil {
			id = sched.ModelID(f.variants[b.Variant])
			answer = uint32(id) + 1
		}
	}
	number, ok = g.runs(id)
	return number, answer, ok
}

func (a *answers) count(variant uint16, requests int) {
	a.requests[a.variants[variant]] += uint64(requests)
}
