package executor

import (
	"fmt"
	"time"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/residency"
)

// Config bounds a Runtime.
type Config struct {
	DeviceBytes int64   // for parameters and activations together
	PinnedBytes int64   // for evicted parameters
	Alpha       float64 // of the eviction score; 0: the paper's 0.4
	// Hang is the longest time of a copy of evicted parameters, after which the device counts as hanging; 0:
	// unlimited.
	Hang      time.Duration
	Capture   bool   // run batches as captured graphs
	Tune      bool   // time the options of each step when a plan is made, and use the fastest
	Libraries string // folders of cuBLASLt and cuDNN, separated by colons, before the usual ones; "none" for neither
	Prefer    string // use the options whose label has this prefix, if there are any: to test one
}

// Runtime holds the state that the models of one device share.
type Runtime struct {
	dev     *cuda.Device
	cfg     Config
	kernels *kernels.Set
	store   *residency.Store
	start   time.Time
	chosen  map[string]string // the label of the chosen option, by computation
	shared  map[contentKey]*sharedContent

	libraries *cuda.Libraries
	asked     map[string][]asked // by computation
}

// Open loads the kernels and reserves memory.
func Open(dev *cuda.Device, c Config) (*Runtime, error) {
	set, err := kernels.Load(dev)
	if err != nil {
		return nil, fmt.Errorf("open executor: %w", err)
	}

	// From here on every failure returns what was taken before.
	store, err := residency.Open(dev, residency.Config{DeviceBytes: c.DeviceBytes, PinnedBytes: c.PinnedBytes, Alpha: c.Alpha, Hang: c.Hang})
	if err != nil {
		set.Free()
		return nil, fmt.Errorf("open executor: %w", err)
	}

	libraries := &cuda.Libraries{}
	if c.Libraries != "none" {
		if libraries, err = dev.OpenLibraries(c.Libraries); err != nil {
			store.Close()
			set.Free()
			return nil, fmt.Errorf("open executor: %w", err)
		}
	}

	return &Runtime{dev: dev, cfg: c, libraries: libraries, asked: map[string][]asked{}, kernels: set, store: store, start: time.Now(),
		chosen: map[string]string{}, shared: map[contentKey]*sharedContent{}}, nil
}

// Stats returns the counts of the residency store.
func (r *Runtime) Stats() residency.Stats { return r.store.Stats() }

// Close frees everything; models must be closed and nothing may run.
func (r *Runtime) Close() {
	r.forgetLibraries()
	r.store.Close()
	r.kernels.Free()
}
