package engine

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"time"

	"downbeat.dev/core/plan"
)

// Limits and periods.
const (
	PartitionsMax      = 64
	FrontendsMax       = 1 << 14 // sessions at a time
	GPUsMax            = 1 << 17
	ModelsMax          = 1 << 16
	RequestsMaxDefault = 1 << 20 // live requests per partition

	houseEvery = 100 * time.Millisecond // period of watchdogs and delays
)

// Options configure an Engine. The zero value is one partition and one loop.
type Options struct {
	Cores       int           // loops, each on its own OS thread; 0: 1
	Partitions  int           // locks that models are spread over; 0: as many as Cores
	RequestsMax int           // live requests per partition; 0: RequestsMaxDefault
	QueueMax    int           // queued requests per model; 0: sched.QueueMaxDefault
	GPUs        int           // the most GPUs at a time; 0: GPUsMax
	Spin        time.Duration // the least time before a wake-up at which a loop stops sleeping and spins; 0: 60 µs; negative: never
	// Ctrl and Data bound the network delay (d_ctrl, d_data per input). 0: measured.
	Ctrl, Data time.Duration
	Prompt     float64                  // sched.Options.Prompt; 0: always defer
	SLO        map[string]time.Duration // by model name; overrides what backends state
	Floors     map[string]float64       // by family: the least accuracy that may answer; 0: any
	// LearnShare is the share of GPU time that learners buy, where a backend has spare work, instead of its going to
	// variants. 0: none.
	LearnShare float64
	// Epoch is the interval at which models are placed anew by demand; 0: only when an operator applies a plan.
	Epoch  time.Duration
	Clock  Clock        // nil: Monotonic
	Logger *slog.Logger // nil: silent
	// Manual starts no goroutine: the caller polls with Poll and NextWake, from one goroutine. It is for the
	// simulator and benchmarks.
	Manual bool
}

// checkOptions sets defaults for unset options and refuses values out of range.
func (o *Options) checkOptions() error {
	o.setDefaults()
	switch {
	case o.Cores < 1 || o.Cores > PartitionsMax:
		return fmt.Errorf("engine: %d cores, want 1 to %d", o.Cores, PartitionsMax)
	case o.Partitions < o.Cores || o.Partitions > PartitionsMax:
		return fmt.Errorf("engine: %d partitions, want %d (cores) to %d", o.Partitions, o.Cores, PartitionsMax)

	// In this form the comparisons also refuse NaN.
	case !(o.Prompt >= 0 && o.Prompt <= 1):
		return fmt.Errorf("engine: prompt %v, want 0 to 1", o.Prompt)
	case !(o.LearnShare >= 0 && o.LearnShare <= plan.LearnShareMost):
		return fmt.Errorf("engine: learn share %v, want 0 to %v", o.LearnShare, plan.LearnShareMost)
	case o.RequestsMax < 1 || o.RequestsMax > 1<<30:
		return fmt.Errorf("engine: %d requests, want 1 to %d", o.RequestsMax, 1<<30)
	case o.Ctrl < 0 || o.Data < 0:
		return fmt.Errorf("engine: network delays %v and %v, want 0 (measured) or more", o.Ctrl, o.Data)
	case o.GPUs < 1 || o.GPUs > GPUsMax:
		return fmt.Errorf("engine: %d gpus, want 1 to %d", o.GPUs, GPUsMax)
	case o.Epoch < 0:
		return fmt.Errorf("engine: epoch %v, want 0 (plans are an operator's) or more", o.Epoch)
	case o.QueueMax < 0:
		return fmt.Errorf("engine: queue maximum %d, want 0 (default) or more", o.QueueMax)
	}
	return checkFloors(o.Floors)
}

func (o *Options) setDefaults() {
	o.Cores = cmp.Or(o.Cores, 1)
	o.Partitions = cmp.Or(o.Partitions, o.Cores)
	o.RequestsMax = cmp.Or(o.RequestsMax, RequestsMaxDefault)
	o.GPUs = cmp.Or(o.GPUs, GPUsMax)
	o.Spin = cmp.Or(o.Spin, spinDefault)

	if o.Clock == nil {
		o.Clock = Monotonic{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
}
