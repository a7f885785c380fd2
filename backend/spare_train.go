package backend

import "downbeat.dev/backend/train"

// trainsOnDevice is an executor whose device runs training steps beside its batches.
type trainsOnDevice interface {
	NewTrainer(net train.Net, o train.Options) (train.Stepper, error)
}

// NewTrainer returns what runs the training steps of spare work, and the index of the GPU that does, to which the work must
// be pinned; −1: the processor does. Close it before the backend ends.
//
// A trainer stays on its device. The scheduler gives batches to the first of the idle GPUs, so the last one has the most
// time to spare; where it has no memory for a trainer, the one before it is next.
func (b *Backend) NewTrainer(net train.Net, o train.Options) (t train.Stepper, gpu int, err error) {
	for i := len(b.gpus) - 1; i >= 0; i-- {
		g := b.gpus[i]
		for _, e := range g.executors {
			d, ok := e.(trainsOnDevice)
			if !ok {
				continue
			}
			t, err := d.NewTrainer(net, o)
			if err == nil {
				b.log.Info("the GPU trains the model, layer by layer", "model", net.Name, "gpu", g.name)
				return t, i, nil
			}
			b.log.Warn("the GPU does not train the model", "model", net.Name, "gpu", g.name, "err", err)
		}
	}

	t, err = train.New(net, o)
	return t, -1, err
}
