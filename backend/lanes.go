package backend

import (
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/wire"
)

// A device may be split into lanes: executors that run batches beside each other, each with an equal part of it. To the
// scheduler each lane is a GPU of a kind of its own, with ℓ(b) as it is while all lanes run (docs/decisions/0399).

const threadsMax = 256

// checkLanes checks how executors and GPUs are split.
func (o *Options) checkLanes() error {
	devices := max(o.Emulate, o.Executors, len(o.Cores), 1)
	switch {
	case o.Threads < 1 || o.Threads > threadsMax:
		return fmt.Errorf("threads: %d: want 1 to %d", o.Threads, threadsMax)
	case o.Lanes < 1 || o.Lanes > device.LanesMax:
		return fmt.Errorf("lanes: %d: want 1 to %d", o.Lanes, device.LanesMax)
	case (o.Lanes > 1 || o.Threads > 1) && len(o.Cores) > 0:
		return fmt.Errorf("cores: a pinned executor is one core: not together with threads or lanes above 1")
	case o.Threads > 1 && (o.GPUs || o.Emulate > 0):
		return fmt.Errorf("threads: %d: only for executors on the processor, without gpu and emulate", o.Threads)
	case devices*o.Lanes > wire.GPUsMax:
		return fmt.Errorf("lanes: %d of each of %d executors: want %d in all at most", o.Lanes, devices, wire.GPUsMax)
	case !o.GPUs && o.Emulate == 0:
		return checkThreads(o.Threads, o.Lanes)
	}
	return nil
}

// checkThreads checks that an executor on the processor can be split into equal lanes.
func checkThreads(threads, lanes int) error {
	if threads%lanes == 0 {
		return nil
	}
	return fmt.Errorf("lanes: %d is no divisor of the threads of an executor, %d: each lane has as many; set threads to a multiple of %d", lanes, threads, lanes)
}

// laneSlowdown returns the largest factor by which a batch may take longer while all lanes run. Lanes of a GPU may have to
// take turns; those of the processor have threads of their own.
func (o *Options) laneSlowdown() int {
	if !o.GPUs {
		return 1
	}
	return o.Lanes
}
