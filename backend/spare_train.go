package backend

import "downbeat.dev/backend/train"

// trainsOnDevice is an executor whose device runs training steps beside its batches.
type trainsOnDevice interface {
	NewTrainer(net train.Net, o train.Options) (train.Stepper, error)
}

// NewTrainer returns what runs the training steps of spare work; close it before the backend ends. It is the backend's
// GPU if that can. Of several GPUs the scheduler chooses another one for each step, and a trainer stays on its device, so
// they leave training to the processor.
func (b *Backend) NewTrainer(net train.Net, o train.Options) (train.Stepper, error) {
	if len(b.gpus) == 1 {
		for _, e := range b.gpus[0].executors {
			d, ok := e.(trainsOnDevice)
			if !ok {
				continue
			}
			t, err := d.NewTrainer(net, o)
			if err == nil {
				b.log.Info("the GPU trains the model, layer by layer", "model", net.Name, "gpu", b.gpus[0].name)
				return t, nil
			}
			b.log.Warn("the GPU does not train the model, the processor does", "model", net.Name, "err", err)
		}
	}
	return train.New(net, o)
}
