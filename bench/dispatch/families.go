package dispatch

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// table is ℓ(b) in ns, by b.
type table [batchMax + 1]int64

// execTable returns ℓ(b) of a variant on a kind of GPUs. The last variant is the most accurate and the slowest, and each
// one before it takes half the time. Each kind is a quarter of the first one's time slower than the one before.
func (s *Setting) execTable(variant, kind int) (t table) {
	for b := 1; b <= batchMax; b++ {
		t[b] = (alpha*int64(b) + beta) * int64(4+kind) / 4 >> (s.Variants - 1 - variant)
	}
	return t
}

// fullRate returns the requests/s that all GPUs sustain with the most accurate variants and full batches.
func (s *Setting) fullRate() (sum float64) {
	for k := range s.Kinds {
		full := s.execTable(s.Variants-1, k)[batchMax]
		sum += float64(s.gpusOf(k)) * batchMax / float64(full) * 1e9
	}
	return sum
}

// gpusOf returns the number of GPUs of a kind.
func (s *Setting) gpusOf(kind int) int {
	return (s.GPUs + s.Kinds - 1 - kind) / s.Kinds
}

// Limits of a setting.
const (
	variantsMax = 8
	kindsMax    = 8
)

// kind is a backend with all GPUs of one kind.
type kind struct {
	*rig
	number int32
	back   *engine.Backend
	exec   []table // by variant
}

// openKinds opens a backend for each kind of GPUs.
func (r *rig) openKinds() (err error) {
	for k := range r.set.Kinds {
		x := &kind{rig: r, number: int32(k)}
		for v := range r.set.Variants {
			x.exec = append(x.exec, r.set.execTable(v, k))
		}
		r.kinds = append(r.kinds, x)

		if x.back, err = r.e.OpenBackend(x.hello(), x); err != nil {
			return err
		}
	}
	return nil
}

// hello names the backend's GPUs and models.
func (x *kind) hello() wire.BackendHello {
	h := wire.BackendHello{Name: fmt.Sprint("emulated ", x.number), GPUs: make([]string, x.set.gpusOf(int(x.number)))}

	// GPUs of a named kind are known to run models alike, so that nobody compares their profiles.
	h.Details = slices.Repeat([]wire.GPUDetail{{Kind: h.Name}}, len(h.GPUs))
	profiles := make([][]time.Duration, len(x.exec))
	for v := range x.exec {
		for _, d := range x.exec[v][1:] {
			profiles[v] = append(profiles[v], time.Duration(d))
		}
	}

	for i := range x.set.Models {
		for v := range x.exec {
			info := model.Info{Name: fmt.Sprint("m", i), SLO: slo}
			if len(x.exec) > 1 {
				info.Family, info.Variant = info.Name, fmt.Sprint(v)
				info.Name, info.Accuracy = fmt.Sprint(info.Name, "-", v), 1-0.03*float64(len(x.exec)-1-v)
			}
			h.Models = append(h.Models, wire.BackendModel{Profile: profiles[v], Info: info})
		}
	}
	return h
}

// sampleEvery is the number of batches per sampled delay.
const sampleEvery = 8

// Execute emulates the GPUs: it enters each batch into the calendar at its end.
func (x *kind) Execute(m []engine.Order) {
	for i := range m {
		o := &m[i]
		exec := &x.exec[int(o.Model)%len(x.exec)]
		took := exec[len(o.Requests)]

		// The top byte of the batch's number is its partition, and each core has one partition.
		c := x.cores[o.Batch>>56]
		end := c.now.Load() + o.Start + took
		at := (end >> slotShift) & (slots - 1)
		c.mu.Lock()
		c.enterBatch(at, x.number, wire.Done{Batch: o.Batch, GPU: o.GPU, Exec: took})
		c.batches++
		c.served += uint64(len(o.Requests))

		if c.sampling && c.batches%sampleEvery == 0 && len(c.delays) < cap(c.delays) {
			c.delays = append(c.delays, int64(x.clock.Now())-readyAt(o, exec))
		}
		c.mu.Unlock()
	}
}

// keepHouse renews the families' prices beside the cores, as a live engine does on a goroutine of its own, until end is
// called.
func (r *rig) keepHouse() (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(houseLook)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				r.e.Poll(r.clock.Now())
			}
		}
	}()

	return func() { close(stop); <-ended }
}

// houseLook is how often the engine is asked whether its housekeeping is due.
const houseLook = 10 * time.Millisecond
