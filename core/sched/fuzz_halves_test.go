package sched

import (
	"testing"
	"time"

	"downbeat.dev/core/invariants"
)

// FuzzHalves drives Partitions and Rankers whose messages wait in mailboxes for as long as the tape says and arrive
// in any order, as with several goroutines: grants answer candidates that have changed or gone, and GPUs are removed
// with grants under way. Once all messages have arrived, each Ranker knows the newest candidate of each model.
func FuzzHalves(f *testing.F) {
	addTapes(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		if first, second := playHalves(t, b, false), playHalves(t, b, false); first != second {
			t.Fatalf("I7: the same calls gave other outputs")
		}
	})
}

const fuzzParts = 2

// letter is a message from a Partition to a Ranker.
type letter struct {
	free      Free
	candidate Candidate
	isFree    bool
}

type halves struct {
	*ledger
	tape
	parts   [fuzzParts]*Partition
	rankers [fuzzSubs]*Ranker
	out     [fuzzParts][fuzzSubs][]letter
	grants  [fuzzSubs][fuzzParts][]Grant
	newest  [fuzzSubs]map[ModelID]Candidate // sent to each Ranker
	count   [fuzzSubs]int                   // GPUs
	epoch   uint32
}

func playHalves(t *testing.T, b []byte, families bool) uint64 {
	h := &halves{ledger: newLedger(t), tape: tape{b}}
	h.families = families
	for i := range h.parts {
		h.parts[i] = NewPartition(Options{Number: uint16(i)})
		h.parts[i].near = i * nearModels
	}
	for i := range h.rankers {
		h.rankers[i] = NewRanker(uint32(i), Options{})
		h.newest[i] = map[ModelID]Candidate{}
		h.addGPU(GPUID(i), uint32(i))
		m := Model{Profile: line(t, time.Millisecond, 2*time.Millisecond, 1+3*i), SLO: 20 * ms, SubCluster: uint32(i)}
		h.added(ModelID(i), m.service(), h.part(ModelID(i)).AddModel(0, ModelID(i), m))
		h.collect(h.part(ModelID(i)))
	}
	for h.more() {
		h.step()
	}
	h.drain()
	return h.hash
}

func (h *halves) part(m ModelID) *Partition { return h.parts[m%fuzzParts] }

func (h *halves) step() {
	h.told = h.now
	switch h.n(20) {
	default:
		r := h.request(&h.tape, h.now)
		p := h.part(r.Model)
		h.enqueued(r, p.Enqueue(h.now, r))
		h.collect(p)
	case 5:
		r, from := h.request(&h.tape, h.now), h.now.Add(h.span()/2)
		p := h.part(r.Model)
		why := p.AdmitEarly(h.now, &r, from)
		h.enqueued(r, why)
		h.noteEarly(r, from, why)
		h.collect(p)
	case 6, 7:
		h.tell(h.now.Add(max(0, h.span())))
	case 8, 9:
		p := h.parts[h.n(fuzzParts)]
		p.Advance(h.now)
		h.collect(p)
	case 10, 11:
		h.rank(uint32(h.n(fuzzSubs)))
	case 12, 13:
		h.deliver(h.n(fuzzParts), h.n(fuzzSubs), h.byte())
	case 14, 15:
		h.grant(h.n(fuzzSubs), h.n(fuzzParts), h.byte())
	case 16:
		b, id, at := h.completion(&h.tape)
		if g := h.gpus[id]; g != nil {
			h.complete(b, id, at, g)
		}
	case 17:
		h.addGPU(GPUID(h.n(fuzzGPUs)), uint32(h.n(fuzzSubs)))
	case 18:
		if id := GPUID(h.n(fuzzGPUs)); h.gpus[id] != nil {
			sub := h.gpus[id].sub
			delete(h.gpus, id)
			h.rankers[sub].RemoveGPU(h.now, id)
			h.setGPUs(sub, -1)
		}
	case 19:
		id, m := h.service(&h.tape)
		p := h.part(id)
		if h.families {
			sub, price := uint32(h.n(fuzzSubs)), float64(h.byte())
			p.SetPrice(sub, price, price/2)
		}
		_, known := h.models[id]
		switch how := h.byte(); {
		case known && how > 192:
			h.changed(id, m, p.ChangeService(h.now, id, m))
			h.collect(p)
			return
		case known && how > 128:
			p.RemoveModel(h.now, id)
			delete(h.models, id)
		}
		h.added(id, m, p.AddService(h.now, id, m))
		h.collect(p)
	}
}

// complete tells a Ranker of a batch whose Free it has.
func (h *halves) complete(b BatchID, id GPUID, at Time, g *fuzzGPU) {
	r := h.rankers[g.sub]
	for i := uint8(0); i < r.gpus[id].unfinished; i++ {
		if r.order(id, i).id == b {
			old := g.Free
			h.completed(b, id, at, r.Complete(h.now, b, id, at))
			if r.gpus[id].state == granted { // the holder of the grant does not know yet
				g.Free = min(g.Free, old)
			}
			return
		}
	}
	if r.Complete(h.now, b, id, at) == nil {
		h.t.Fatalf("batch %d of gpu %d completed, but the ranker has not heard of it", b, id)
	}
}

// collect takes a Partition's outputs.
func (h *halves) collect(p *Partition) {
	n := 0
	for h.parts[n] != p {
		n++
	}
	o := p.Outputs()
	for _, d := range o.Drops {
		h.dropped(d)
	}
	k := 0
	for _, f := range o.Frees {
		h.out[n][f.SubCluster] = append(h.out[n][f.SubCluster], letter{free: f, isFree: true})
		if f.Batch == 0 {
			continue
		}
		b := o.Batches[k]
		k++
		if b.ID != f.Batch || b.GPU != f.GPU || b.ExecAt != f.Start || b.Finish != f.FreeAt {
			h.t.Fatalf("I5: %+v is answered by %+v", b, f)
		}
		if !h.current(f) { // the GPU was removed meanwhile: the driver does not send its batch
			b.GPU = IDLimit
		}
		h.batch(b)
	}
	if k != len(o.Batches) {
		h.t.Fatalf("I5: %d batches, but %d of the Frees have one", len(o.Batches), k)
	}
	for _, c := range o.Candidates {
		h.out[n][c.SubCluster] = append(h.out[n][c.SubCluster], letter{candidate: c})
		h.newest[c.SubCluster][c.Model] = c
	}
	o.Reset()
}

// current reports whether a Free refers to a GPU's current life.
func (h *halves) current(f Free) bool {
	g := h.gpus[f.GPU]
	return g != nil && g.sub == f.SubCluster && h.rankers[f.SubCluster].gpus[f.GPU].epoch == f.Epoch
}

// takeOut removes one of the messages in a mailbox: the oldest one for 0.
func takeOut[M any](box *[]M, which int) M {
	k := which % len(*box)
	m := (*box)[k]
	*box = append((*box)[:k], (*box)[k+1:]...)
	return m
}

// deliver hands a Ranker one of the messages of a Partition.
func (h *halves) deliver(part, sub, which int) bool {
	box := &h.out[part][sub]
	if len(*box) == 0 {
		return false
	}

	m := takeOut(box, which)
	if m.isFree {
		h.rankers[sub].Free(h.now, &m.free)
	} else {
		h.rankers[sub].Candidate(h.now, &m.candidate)
	}
	return true
}

// rank lets a Ranker match.
func (h *halves) rank(sub uint32) {
	for _, g := range h.rankers[sub].Advance(h.now) {
		n := int(g.Model % fuzzParts)
		h.grants[sub][n] = append(h.grants[sub][n], g)
	}
}

// grant passes one of a Ranker's Grants to a Partition; exactly one Free answers it.
func (h *halves) grant(sub, part, which int) bool {
	box := &h.grants[sub][part]
	if len(*box) == 0 {
		return false
	}

	g := takeOut(box, which)
	p := h.parts[part]
	p.Grant(h.now, g)
	if f := p.Outputs().Frees; len(f) != 1 || f[0].GPU != g.GPU || f[0].Epoch != g.Epoch || f[0].Model != g.Model || f[0].SubCluster != g.SubCluster {
		h.t.Fatalf("I5: %+v is answered by %+v", g, f)
	}
	h.collect(p)
	return true
}

func (h *halves) addGPU(id GPUID, sub uint32) {
	if h.gpus[id] != nil {
		return
	}
	h.epoch++
	if err := h.rankers[sub].AddGPU(h.now, id, h.epoch); err != nil {
		h.t.Fatal(err)
	}
	h.gpus[id] = &fuzzGPU{GPU: invariants.GPU{Free: int64(h.now)}, sub: sub, group: GroupOf(uint32(id))}
	h.rankers[sub].SetGroup(id, h.gpus[id].group)
	h.setGPUs(sub, 1)
}

func (h *halves) setGPUs(sub uint32, more int) {
	h.count[sub] += more
	for _, p := range h.parts {
		p.SetGPUs(h.now, sub, h.count[sub])
		h.collect(p)
	}
}

// drain delivers all messages and advances time until every deadline has passed.
func (h *halves) drain() {
	last := h.now
	for _, all := range h.live {
		for _, r := range all.requests {
			if r.Deadline != Never {
				last = max(last, r.Deadline)
			}
		}
	}
	for calls := 0; ; calls++ {
		at := Never
		h.told = h.now
		for _, p := range h.parts {
			p.Advance(h.now)
			h.collect(p)
		}
		for h.settle() {
		}
		for _, p := range h.parts {
			at = min(at, p.NextWake())
		}
		for _, r := range h.rankers {
			at = min(at, r.NextWake())
		}
		if at > last {
			break
		}
		if at > h.now {
			calls = 0
		}
		if calls > 1000 {
			h.t.Fatalf("at %d the halves ask for %d again and again", h.now, at)
		}
		h.tell(at)
	}
	for id, all := range h.live {
		if all.requests[0].Deadline != Never && !h.twice[id] {
			h.t.Fatalf("C2: request %d never ended: %+v", id, *all)
		}
	}
	for sub, r := range h.rankers {
		for id := range r.gpus {
			if r.gpus[id].state == granted {
				h.t.Fatalf("I5: gpu %d is granted, but nobody has it", id)
			}
		}
		h.checkNewest(sub)
	}
}

// checkNewest compares a Ranker's candidates with those sent to it.
func (h *halves) checkNewest(sub int) {
	for id := range ModelID(fuzzModels + 1) {
		c, sent := h.newest[sub][id]
		if !sent {
			continue
		}

		v := h.rankers[sub].rivals[id]
		if v.seq != c.Seq || v.known == c.Gone || v.size != c.Size {
			h.t.Fatalf("I8: of model %d ranker %d was sent %+v and knows %+v", id, sub, c, v)
		}
	}
}

// settle delivers all messages, the later ones first; false if there were none.
func (h *halves) settle() (worked bool) {
	for sub := range h.rankers {
		for part := range h.parts {
			for n := len(h.out[part][sub]); h.deliver(part, sub, n-1); n-- {
				worked = true
			}
		}
		h.rank(uint32(sub))
		for part := range h.parts {
			for n := len(h.grants[sub][part]); h.grant(sub, part, n-1); n-- {
				worked = true
			}
		}
	}
	return worked
}
