package drift

import (
	"fmt"
	"time"

	"downbeat.dev/cuda/residency"
)

// noContent stands for the parameters of a layer without any.
const noContent = ^residency.ID(0)

// backward is the cost of the backward pass relative to the forward pass; trainingCost is the cost of both.
const backward = trainingCost - 1

// removeContent removes a content that is not in use.
func (g *memoryGPU) removeContent(id residency.ID) error {
	if id == noContent {
		return nil
	}
	g.known[id].seen = g.known[id].seen[:0]
	return g.table.Remove(id)
}

// batchRun is one batch on the GPU.
type batchRun struct {
	r            *memoryRun
	app          *memoryApp
	network      int
	work         *batchWork
	kind         residency.Kind // of its intermediates
	intermediate []residency.ID // by number; noContent once freed
	fetch, held  []residency.ID // of the current layer
	whole        *batchWork     // the batch of which this is one request (variant M1); nil: this is the batch
	requests     int            // of whole
}

func (r *memoryRun) beginBatch(app *memoryApp, network, size int, kind residency.Kind) (*batchRun, error) {
	work, err := r.networks[network].batch(size)
	if err != nil {
		return nil, err
	}

	b := &batchRun{r: r, app: app, network: network, work: work, kind: kind}
	for i, a := range work.activations {
		id, err := r.g.addContent(residency.Content{Name: fmt.Sprintf("network %d, output %d", network, i), Kind: kind, Bytes: a.bytes, SLO: app.slo})
		if err != nil {
			return nil, err
		}
		b.intermediate = append(b.intermediate, id)
	}
	return b, nil
}

// runLayer runs a layer forward or, taking times as long, backward. Intermediates stay in use while a layer needs
// them, so the table never evicts them.
func (b *batchRun) runLayer(layer int, times time.Duration, also []residency.ID) error {
	g, l := b.r.g, &b.work.layers[layer]
	b.fetch, b.held = b.fetch[:0], append(b.held[:0], also...)

	for _, owner := range l.weights {
		if id := b.app.params[b.network][owner]; id != noContent {
			b.fetch = append(b.fetch, id)
		}
	}
	params := len(b.fetch)

	for _, a := range l.uses {
		if b.work.activations[a].first == layer && times == 1 {
			b.fetch = append(b.fetch, b.intermediate[a])
		} else {
			b.held = append(b.held, b.intermediate[a])
		}
	}

	if g.looks() {
		b.lookAround()
	}
	if err := g.runLayer(b.fetch, b.held, times*b.layerTime(layer)); err != nil {
		return fmt.Errorf("layer %d of %s: %w", layer, b.r.memorySetting.networks[b.network], err)
	}
	g.releaseContents(b.fetch[:params])
	return nil
}

// lookAround inspects the device's contents, as the paper does at a random moment of retraining or inference.
func (b *batchRun) lookAround() {
	g := b.r.g

	// Retraining uses one network's parameters, answering all networks'.
	intermediates := inferIntermediates
	if b.kind == residency.RetrainIntermediates {
		intermediates = trainIntermediates
		g.noteAllSeen(b.app.params[b.network], trainParameters)
	} else {
		for _, app := range b.r.all {
			for _, ids := range app.params {
				g.noteAllSeen(ids, inferParameters)
			}
		}
	}
	g.noteAllSeen(b.intermediate, intermediates)
}

// freeIntermediates frees intermediates that are useless after a layer; all of them after the last.
func (b *batchRun) freeIntermediates(useless func(activation) bool) error {
	for i, id := range b.intermediate {
		if id == noContent || !useless(b.work.activations[i]) {
			continue
		}
		b.r.g.releaseContents([]residency.ID{id})
		if err := b.r.g.removeContent(id); err != nil {
			return err
		}
		b.intermediate[i] = noContent
	}
	return nil
}

// runJob retrains in the time that the job's SLO leaves, and answers.
func (r *memoryRun) runJob(j memoryJob) error {
	app := r.all[j.app]
	answers, err := r.answersTime(j.frames)
	if err != nil {
		return err
	}
	r.asked += j.frames

	// Do not begin a job that cannot end in time.
	if r.g.now+answers > j.deadline {
		return nil
	}

	trained, err := r.retrain(app, j.deadline-answers)
	if err != nil {
		return err
	}
	if err := r.answerFrames(app, j.frames, trained); err != nil {
		return err
	}
	if r.g.now <= j.deadline {
		r.finished += j.frames
	}

	// Note the present contents that the application's next job will use (figure 13).
	for _, ids := range app.params {
		for _, id := range ids {
			if id != noContent && r.g.looks() {
				r.g.noteSeen(id, nextJobParameters)
			}
		}
	}
	return nil
}

const noTraining = -1

// retrain runs the steps that an application has earned and that end by a time, its networks in turn, and returns the
// network of the last step.
func (r *memoryRun) retrain(app *memoryApp, until time.Duration) (trained int, err error) {
	trained = noTraining
	if len(app.trains) == 0 {
		return trained, nil
	}
	app.earned += time.Duration(r.share * float64(r.g.now-app.until))
	app.until = r.g.now

	for {
		network := app.trains[app.turn%len(app.trains)]
		work, err := r.networks[network].batch(batchMax)
		if err != nil {
			return trained, err
		}

		step := trainingCost * work.took()
		if app.earned < step || r.g.now+step > until {
			return trained, nil
		}
		if err := r.trainStep(app, network, work); err != nil {
			return trained, err
		}
		app.earned -= step
		app.turn++
		r.steps++
		trained = network
	}
}

// trainStep runs a forward and a backward pass, and keeps all layers' outputs in between.
func (r *memoryRun) trainStep(app *memoryApp, network int, work *batchWork) error {
	all, err := r.beginBatches(app, network, batchMax, residency.RetrainIntermediates)
	if err != nil {
		return err
	}
	if err := r.runLayers(all, func(b *batchRun, layer int) error { return b.runLayer(layer, 1, nil) }); err != nil {
		return err
	}

	return r.runLayers(all, func(b *batchRun, step int) error {
		layer := len(work.layers) - 1 - step
		if err := b.runLayer(layer, backward, nil); err != nil {
			return err
		}
		for _, owner := range work.layers[layer].weights {
			if id := app.params[network][owner]; id != noContent {
				r.g.known[id].dirty = true
			}
		}

		// Layers before the one that made an output no longer need it.
		return b.freeIntermediates(func(a activation) bool { return a.first == layer })
	})
}

// answerFrames runs the networks one after another, each layer for all frames of a batch.
func (r *memoryRun) answerFrames(app *memoryApp, frames, trained int) error {
	var batches []*batchRun
	var detected time.Duration // when the detector had ended
	for network := range r.networks {
		for left := frames; left > 0; left -= r.batch {
			now, err := r.beginBatches(app, network, min(left, r.batch), residency.Intermediates)
			if err != nil {
				return err
			}

			// The networks behind the detector start with its outputs.
			var found []residency.ID
			if network > 0 {
				found = batches[0].outputs()
			}
			if network == trained {
				r.g.noteAllSeen(app.params[network], updatedParameters)
			}
			batches = append(batches, now...)

			err = r.runLayers(now, func(b *batchRun, layer int) error {
				if err := b.runLayer(layer, 1, found); err != nil {
					return err
				}
				if len(found) > 0 {
					r.g.reused[detectorOutputs] = append(r.g.reused[detectorOutputs], r.g.now-b.layerTime(layer)-detected)
					found = nil
				}
				return b.freeIntermediates(func(a activation) bool { return a.last == layer })
			})
			if err != nil {
				return err
			}
		}
		if network == 0 {
			detected = r.g.now
		}
	}

	// When a job completes, its intermediates are freed and its parameters stay (Observation 9).
	for _, b := range batches {
		if err := b.freeIntermediates(func(activation) bool { return true }); err != nil {
			return err
		}
	}
	return nil
}

// outputs returns the outputs of a batch.
func (b *batchRun) outputs() (all []residency.ID) {
	for i, id := range b.intermediate {
		if id != noContent && b.work.activations[i].last == len(b.work.layers) {
			all = append(all, id)
		}
	}
	return all
}
