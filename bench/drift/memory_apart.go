package drift

import (
	"time"

	"downbeat.dev/cuda/residency"
)

// AdaInf runs each layer for all requests of a batch at once (§3.4.1). Its variant M1 does not: each request runs its
// layers on its own, without regard to where the others are. The GPU runs requests at the same time, so that they take
// no longer than as one batch; but a layer's parameters may leave the device between two of them, and come back.

// beginBatches begins a batch, or each of its requests on its own.
func (r *memoryRun) beginBatches(app *memoryApp, network, size int, kind residency.Kind) (all []*batchRun, err error) {
	if !r.apart {
		b, err := r.beginBatch(app, network, size, kind)
		return []*batchRun{b}, err
	}

	whole, err := r.networks[network].batch(size)
	if err != nil {
		return nil, err
	}
	for range size {
		b, err := r.beginBatch(app, network, 1, kind)
		if err != nil {
			return nil, err
		}

		b.whole, b.requests = whole, size
		all = append(all, b)
	}
	return all, nil
}

// layerTime returns a layer's time; of one request, its part of the whole batch's.
func (b *batchRun) layerTime(layer int) time.Duration {
	if b.whole == nil {
		return b.work.layers[layer].took
	}
	return b.whole.layers[layer].took / time.Duration(b.requests)
}

// runLayers runs all layers of each batch, one layer at a time; of several batches a random one's is next.
func (r *memoryRun) runLayers(all []*batchRun, run func(b *batchRun, layer int) error) error {
	next := make([]int, len(all))
	left := len(all)
	turn := make([]int, len(all)) // the first left of them are batches with layers to run
	for i := range turn {
		turn[i] = i
	}

	for left > 0 {
		k := 0
		if len(all) > 1 {
			k = r.g.rng.IntN(left)
		}

		i := turn[k]
		if err := run(all[i], next[i]); err != nil {
			return err
		}

		// A batch that has ended leaves its turn to the last one.
		if next[i]++; next[i] == len(all[i].work.layers) {
			left--
			turn[k] = turn[left]
		}
	}
	return nil
}
