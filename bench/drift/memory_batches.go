package drift

import (
	"errors"
	"time"

	"downbeat.dev/cuda/residency"
)

// batchSizes are those of AdaInf's figures 8 to 11.
var batchSizes = []int{1, 2, 4, 8, 16, 32, 64}

// jobFrames is the number of frames of a job in those figures; the paper has no rates.
const jobFrames = 64

// batchesTime is the time of a job's batches, one after another, averaged over the applications.
type batchesTime struct {
	batch           int
	job             time.Duration
	copying         time.Duration // part of the time for copies
	fits            bool          // a batch's intermediates fit on the device
	evicted, loaded int           // contents per job
}

// perBatch returns the time of one batch of all networks.
func (b batchesTime) perBatch() time.Duration {
	return b.job / time.Duration((jobFrames+b.batch-1)/b.batch)
}

// simulateBatches lets every application answer a job twice, in turn, on a GPU with this memory. The first round
// starts with an empty device, so only the second counts. Nothing is retrained.
func simulateBatches(s memorySetting, device int64) (got batchesTime, err error) {
	got.batch = s.batch
	r := &memoryRun{memorySetting: s}
	if err := r.openNetworks(); err != nil {
		return got, err
	}
	r.openApps()
	params, _, err := r.countBytes()
	if err != nil {
		return got, err
	}

	// A batch larger than the device is known before it runs.
	if err := r.openGPU(device, int64(s.pinned*float64(params))); err != nil {
		return got, err
	}
	for range 2 {
		before := *r.g
		for _, app := range r.all {
			err := r.answerFrames(app, jobFrames, noTraining)
			if errors.Is(err, residency.ErrDoesNotFit) {
				return got, nil
			}
			if err != nil {
				return got, err
			}
		}

		jobs := time.Duration(len(r.all))
		got.job, got.copying = (r.g.now-before.now)/jobs, (r.g.copying-before.copying)/jobs
		got.loaded, got.evicted = (r.g.loads-before.loads)/len(r.all), (sum(r.g.evicted)-sum(before.evicted))/len(r.all)
	}
	got.fits = true
	return got, nil
}

func sum(evicted [residency.Parameters + 1]int) (n int) {
	for _, k := range evicted {
		n += k
	}
	return n
}

// wholeMemory returns the device memory for all applications' parameters and the intermediates of one batch of the
// largest size.
func wholeMemory(s memorySetting) (int64, error) {
	r := &memoryRun{memorySetting: s}
	if err := r.openNetworks(); err != nil {
		return 0, err
	}
	var params, work int64
	for _, n := range r.networks {
		largest, err := n.batch(batchSizes[len(batchSizes)-1])
		if err != nil {
			return 0, err
		}
		work = max(work, largest.liveBytes())
		for _, bytes := range n.params {
			params += bytes * int64(r.apps)
		}
	}
	return params + work, nil
}

// withSpace returns the GPU with only a share of its arithmetic and memory rates. Launches and copies take as long.
func (g ratedGPU) withSpace(share float64) ratedGPU {
	g.flop, g.memory = g.flop*share, g.memory*share
	return g
}

// fastest returns the batch size with the shortest job.
func fastest(all []batchesTime) (best batchesTime) {
	for _, b := range all {
		if b.fits && (best.batch == 0 || b.job < best.job) {
			best = b
		}
	}
	return best
}
