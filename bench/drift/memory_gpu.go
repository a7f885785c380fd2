package drift

import (
	"math/rand/v2"
	"time"

	"downbeat.dev/cuda/residency"
)

// reuseClass is the role of a content in the task during which it was seen (AdaInf figure 12).
type reuseClass int

// The classes: four of figure 12a, two of figure 12b, one of figure 13.
const (
	inferIntermediates reuseClass = iota
	trainParameters
	trainIntermediates
	inferParameters
	detectorOutputs
	updatedParameters
	nextJobParameters
	reuseClasses
)

var reuseNames = [reuseClasses]string{"intermediates in inference", "parameters in retraining", "intermediates in retraining", "parameters in inference",
	"detector's output by the next network", "retrained parameters by inference", "parameters by the next job"}

// sighting is a content that was seen on the device and has not been used since.
type sighting struct {
	class reuseClass
	at    time.Duration
}

// memoryGPU is one GPU in virtual time whose memory a residency.Table manages. It runs one layer after another. A
// layer waits for the copies that bring its contents and make room for them; copies run one after another, as on the
// store's stream.
type memoryGPU struct {
	rates ratedGPU
	table *residency.Table
	now   time.Duration
	known []knownContent // by residency.ID
	moves []residency.Move

	computing, copying time.Duration
	evicted            [residency.Parameters + 1]int
	fromPinned, loads  int
	bytesIn, bytesOut  int64

	rng    *rand.Rand
	reused [reuseClasses][]time.Duration
}

// knownContent is a content's state outside the table.
type knownContent struct {
	kind  residency.Kind
	bytes int64
	dirty bool // the host has older bytes
	seen  []sighting
}

func newMemoryGPU(rates ratedGPU, deviceBytes, pinnedBytes int64, alpha float64, seed uint64) (*memoryGPU, error) {
	table, err := residency.NewTable(deviceBytes, pinnedBytes, alpha)
	return &memoryGPU{rates: rates, table: table, rng: rand.New(rand.NewPCG(seed, 12))}, err
}

// addContent adds a content.
func (g *memoryGPU) addContent(c residency.Content) (residency.ID, error) {
	id, err := g.table.Add(c)
	if err != nil {
		return 0, err
	}
	for int(id) >= len(g.known) {
		g.known = append(g.known, knownContent{})
	}
	g.known[id] = knownContent{kind: c.Kind, bytes: c.Bytes}
	return id, nil
}

// runLayer brings contents to the device and computes for a time. The contents stay until they are released; those in
// held are already there.
func (g *memoryGPU) runLayer(fetch, held []residency.ID, took time.Duration) error {
	moves, err := g.table.Acquire(g.now, fetch, g.moves[:0])
	if err != nil {
		return err
	}
	g.moves = moves

	for _, m := range moves {
		cost := g.moveTime(m)
		g.now += cost
		g.copying += cost
	}

	for _, list := range [2][]residency.ID{fetch, held} {
		for _, id := range list {
			g.noteUse(id)
		}
	}
	g.now += took
	g.computing += took
	return nil
}

// releaseContents ends the use of contents.
func (g *memoryGPU) releaseContents(ids []residency.ID) { g.moves = g.table.Release(ids, g.moves[:0]) }

// moveTime counts a move and returns the time of its copy, which has the same size as residency.Store's.
func (g *memoryGPU) moveTime(m residency.Move) time.Duration {
	c := &g.known[m.ID]
	switch {
	case m.From == residency.Nowhere || m.To == residency.Nowhere:
		return 0
	case m.From == residency.Pinned && m.To == residency.Pageable:
		c.dirty = false // the host copies it, not the device
		return 0
	}

	rate := g.rates.pageable
	if m.From == residency.Pinned || m.To == residency.Pinned {
		rate = g.rates.pinned
	}

	if m.To == residency.Device {
		g.loads++
		g.bytesIn += c.bytes
		if m.From == residency.Pinned {
			g.fromPinned++
		}
		return g.rates.copyTime(c.bytes, rate)
	}

	g.evicted[c.kind]++
	// Pageable memory already has the bytes, unless they have changed.
	if m.To == residency.Pageable && !c.dirty {
		return 0
	}
	if m.To == residency.Pageable {
		c.dirty = false
	}
	g.bytesOut += c.bytes
	return g.rates.copyTime(c.bytes, rate)
}

// noteSeen notes that a content, if id is one, is on the device now, so that its next use counts as a reuse of the
// class.
func (g *memoryGPU) noteSeen(id residency.ID, class reuseClass) {
	if id != noContent && g.table.Place(id) == residency.Device {
		g.known[id].seen = append(g.known[id].seen, sighting{class, g.now})
	}
}

func (g *memoryGPU) noteAllSeen(ids []residency.ID, class reuseClass) {
	for _, id := range ids {
		g.noteSeen(id, class)
	}
}

func (g *memoryGPU) noteUse(id residency.ID) {
	c := &g.known[id]
	for _, s := range c.seen {
		g.reused[s.class] = append(g.reused[s.class], g.now-s.at)
	}
	c.seen = c.seen[:0]
}

// looks reports whether to inspect the device's memory now, at random.
func (g *memoryGPU) looks() bool { return g.rng.IntN(64) == 0 }
