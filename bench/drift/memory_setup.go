package drift

import (
	"fmt"
	"math/rand/v2"
	"time"

	"downbeat.dev/cuda/residency"
)

func (r *memoryRun) openRun() error {
	if err := r.openNetworks(); err != nil {
		return err
	}
	r.openApps()
	r.jobs = r.drawJobs()

	total, work, err := r.countBytes()
	if err != nil {
		return err
	}
	return r.openGPU(work+int64(r.resident*float64(total)), int64(r.pinned*float64(total)))
}

func (r *memoryRun) openNetworks() error {
	for _, name := range r.memorySetting.networks {
		n, err := openLayered(r.directory, name, r.gpu)
		if err != nil {
			return err
		}
		r.networks = append(r.networks, n)
	}
	return nil
}

// openGPU creates the GPU and adds all applications' parameters to it.
func (r *memoryRun) openGPU(device, pinned int64) (err error) {
	if r.g, err = newMemoryGPU(r.gpu, device, pinned, r.alpha, r.seed); err != nil {
		return err
	}
	if r.byAge {
		r.g.table.EvictOldest()
	}

	for _, app := range r.all {
		for n := range r.networks {
			if err := r.addParameters(app, n, residency.Parameters); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *memoryRun) openApps() {
	weights := 0.0
	for k := range r.apps {
		weights += 1 / float64(k+1)
	}

	for k := range r.apps {
		// Multiply by three, which is coprime to the count, so that SLOs do not follow popularity.
		spread := float64(3*k%r.apps) / float64(max(1, r.apps-1))
		app := &memoryApp{rate: r.frames / float64(k+1) / weights, slo: r.sloLeast + time.Duration(spread*float64(r.sloMost-r.sloLeast)),
			params: make([][]residency.ID, len(r.networks)), levels: make([][]float64, len(r.networks))}

		// The detector does not drift (AdaInf figure 5). The first application has the schedule of this package's
		// streams.
		for n := 1; n < len(r.networks); n++ {
			app.levels[n] = drawLevels(rand.New(rand.NewPCG(r.seed, 500+uint64(2*k+n-1))), r.periods)
		}
		r.all = append(r.all, app)
	}
}

// countBytes returns the size of all applications' parameters, and the largest size of one task's intermediates.
func (r *memoryRun) countBytes() (params, work int64, err error) {
	frames := 1
	for _, j := range r.jobs {
		frames = max(frames, min(j.frames, r.batch))
	}

	for i, n := range r.networks {
		for _, bytes := range n.params {
			params += bytes * int64(r.apps)
		}

		answers, err := n.batch(frames)
		if err != nil {
			return 0, 0, err
		}
		work = max(work, answers.liveBytes())

		// The detector is not retrained.
		if i > 0 {
			work = max(work, n.batches[batchMax].activationBytes())
		}
	}
	return params, work, nil
}

// addParameters replaces a network's parameters by contents of a kind.
func (r *memoryRun) addParameters(app *memoryApp, network int, kind residency.Kind) error {
	for _, id := range app.params[network] {
		if err := r.g.removeContent(id); err != nil {
			return err
		}
	}
	app.params[network] = nil

	for layer, bytes := range r.networks[network].params {
		id := noContent
		if bytes > 0 {
			var err error
			if id, err = r.g.addContent(residency.Content{Name: fmt.Sprintf("network %d, layer %d", network, layer), Kind: kind, Bytes: bytes, SLO: app.slo}); err != nil {
				return err
			}
		}
		app.params[network] = append(app.params[network], id)
	}
	return nil
}
