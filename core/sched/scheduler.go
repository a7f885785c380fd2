package sched

import (
	"fmt"

	vocabulary "downbeat.dev/core/model"
)

// Scheduler composes one Partition and the Rankers of its sub-clusters in one goroutine, for the simulator, small
// deployments and tests. Every call takes now; the driver drains Actions after each call or burst of calls, and
// NextWake says when to call Advance next.
type Scheduler struct {
	o       Options
	part    *Partition
	rankers []*Ranker // by sub-cluster; nil: it never had a GPU
	where   []uint32  // where[GPUID] = sub-cluster+1, 0: unknown
	told    []*Ranker // scratch: those that got messages in pump
	steps   []SpareStep
	drained bool
	epoch   uint32 // of the GPU added latest
}

// New returns a Scheduler without models and GPUs.
func New(o Options) *Scheduler { return &Scheduler{o: o, part: NewPartition(o)} }

// AddModel adds a model.
func (s *Scheduler) AddModel(now Time, id ModelID, m Model) error {
	s.reset()
	return s.part.AddModel(now, id, m)
}

// ChangeModel gives a model another profile, SLO, sub-cluster, queue maximum or rate: see Partition.ChangeModel.
func (s *Scheduler) ChangeModel(now Time, id ModelID, m Model) error {
	s.reset()
	err := s.part.ChangeModel(now, id, m)
	s.pump(now)
	return err
}

// AddService adds a service.
func (s *Scheduler) AddService(now Time, id ModelID, v Service) error {
	s.reset()
	return s.part.AddService(now, id, v)
}

// ChangeService gives a service other variants, homes or limits: see Partition.ChangeService.
func (s *Scheduler) ChangeService(now Time, id ModelID, v Service) error {
	s.reset()
	err := s.part.ChangeService(now, id, v)
	s.pump(now)
	return err
}

// SetPrice sets the price of a second of a sub-cluster's GPUs: see Partition.SetPrice.
func (s *Scheduler) SetPrice(subCluster uint32, now, usual float64) {
	s.part.SetPrice(subCluster, now, usual)
}

// RemoveModel removes a model; its queued requests are dropped with UnknownModel.
func (s *Scheduler) RemoveModel(now Time, id ModelID) {
	s.reset()
	s.part.RemoveModel(now, id)
	s.pump(now)
}

// AddGPU adds a GPU to a sub-cluster, free at now.
func (s *Scheduler) AddGPU(now Time, id GPUID, subCluster uint32) error {
	s.reset()
	if subCluster >= SubClusterLimit {
		return fmt.Errorf("sched: gpu %d: sub-cluster %d, want one below %d", id, subCluster, SubClusterLimit)
	}

	// An id is unique across all sub-clusters, because completions name no sub-cluster.
	if id < IDLimit && int(id) < len(s.where) && s.where[id] != 0 {
		return fmt.Errorf("sched: gpu %d: %w", id, ErrKnown)
	}

	for int(subCluster) >= len(s.rankers) {
		s.rankers = append(s.rankers, nil)
	}

	// A ranker is created with its first GPU: most sub-cluster numbers have none.
	r := s.rankers[subCluster]
	if r == nil {
		r = NewRanker(subCluster, s.o)
		s.rankers[subCluster] = r
	}

	if err := r.AddGPU(now, id, s.epoch+1); err != nil {
		return err
	}

	// Change nothing before the ranker has accepted: an error changes nothing.
	s.epoch++
	for int(id) >= len(s.where) {
		s.where = append(s.where, 0)
	}
	s.where[id] = subCluster + 1

	s.part.SetGPUs(now, subCluster, r.GPUs())
	s.rank(now, r)
	s.pump(now)
	return nil
}

// RemoveGPU removes a GPU. The driver resubmits or fails its running batch.
func (s *Scheduler) RemoveGPU(now Time, id GPUID) {
	s.reset()
	r := s.ranker(id)
	if r == nil {
		return
	}
	r.RemoveGPU(now, id)

	s.part.SetGPUs(now, s.where[id]-1, r.GPUs())
	s.where[id] = 0
}

// HoldGPU withholds batches from a GPU until a time: see Ranker.Hold.
func (s *Scheduler) HoldGPU(now Time, id GPUID, until Time) {
	s.reset()
	if r := s.ranker(id); r != nil {
		r.Hold(now, id, until)
	}
}

// SetNetworkDelay replaces d_ctrl and d_data.
func (s *Scheduler) SetNetworkDelay(now Time, ctrl, data Duration) {
	s.reset()

	// Rankers first, so that the partition's new offers meet the delays with which they were computed.
	for _, r := range s.rankers {
		if r != nil {
			r.SetNetworkDelay(ctrl, data)
		}
	}
	s.part.SetNetworkDelay(now, ctrl, data)
	s.pump(now)
}

// Enqueue accepts a request; ReasonNone means that it is queued, any other reason is its outcome.
func (s *Scheduler) Enqueue(now Time, r Request) vocabulary.Reason {
	s.reset()
	why := s.part.Enqueue(now, r)
	if len(s.part.out.Candidates) > 0 || s.part.places != nil && s.part.places.stale {
		s.pump(now)
	}
	return why
}

// Join is Enqueue without its consequences, for requests that arrive at the same moment, as in the engine's bursts:
// otherwise the first would leave alone. Advance must follow at NextWake.
func (s *Scheduler) Join(now Time, r Request) vocabulary.Reason {
	s.reset()
	return s.part.Enqueue(now, r)
}

// JoinEarly is Join for a request that may be in a batch sent at from or later: see Partition.AdmitEarly.
func (s *Scheduler) JoinEarly(now Time, r Request, from Time) vocabulary.Reason {
	s.reset()
	return s.part.AdmitEarly(now, &r, from)
}

// Hasten lets an early request join its queue now: see Partition.Hasten.
func (s *Scheduler) Hasten(now Time, m ModelID, r RequestID, origin uint32) bool {
	s.reset()
	ok := s.part.Hasten(now, m, r, origin)
	s.pump(now)
	return ok
}

// Cancel withdraws a request. True: it was queued.
func (s *Scheduler) Cancel(now Time, m ModelID, r RequestID, origin uint32) bool {
	s.reset()
	ok := s.part.Cancel(now, m, r, origin)
	s.pump(now)
	return ok
}

// Complete reports that a batch has finished; its GPU is free at freeAt.
func (s *Scheduler) Complete(now Time, b BatchID, id GPUID, freeAt Time) error {
	s.reset()
	r := s.ranker(id)
	if r == nil {
		return fmt.Errorf("sched: gpu %d: %w", id, ErrUnknown)
	}
	if err := r.Complete(now, b, id, freeAt); err != nil {
		return err
	}
	s.rank(now, r)
	s.pump(now)
	return nil
}

// Advance handles everything due by now, and the requests that joined.
func (s *Scheduler) Advance(now Time) {
	s.reset()

	// Offer joined requests before time moves the queues on.
	s.pump(now)
	if s.part.Waits() {
		s.tellOutlooks()
	}
	s.part.Advance(now)
	s.pump(now)
	for _, r := range s.rankers {
		if r != nil && r.NextWake() <= now {
			s.rank(now, r)
		}
	}
	s.pump(now)
}

// NextWake returns the latest time for the next Advance; it may be early, never late.
func (s *Scheduler) NextWake() Time {
	if len(s.part.out.Candidates) > 0 || s.part.places != nil && s.part.places.stale {
		return s.part.now // joined requests wait for it
	}
	at := s.part.NextWake()
	for _, r := range s.rankers {
		if r != nil {
			at = min(at, r.NextWake())
		}
	}
	return at
}

// Actions returns the batches to send and the drops to report, valid until the next call.
func (s *Scheduler) Actions() ([]Batch, []Drop) {
	o := &s.part.out
	s.drained = len(o.Batches)|len(o.Drops)|len(s.steps) != 0
	return o.Batches, o.Drops
}

// Load returns the load signals of a sub-cluster.
func (s *Scheduler) Load(subCluster uint32) Load {
	if r := s.rankerOf(subCluster); r != nil {
		return r.Load()
	}
	return Load{}
}

// Stats returns the counters of the partition and of all rankers together.
func (s *Scheduler) Stats() (Stats, RankerStats) {
	var sum RankerStats
	for _, r := range s.rankers {
		if r != nil {
			sum.Grants += r.stats.Grants
			sum.Early += r.stats.Early
			sum.Unused += r.stats.Unused
			sum.Stale += r.stats.Stale
			sum.Stalled += r.stats.Stalled
			sum.ClockBack += r.stats.ClockBack
		}
	}
	return s.part.stats, sum
}

// Queued returns the number of a model's queued requests.
func (s *Scheduler) Queued(id ModelID) int { return s.part.Queued(id) }

// Bid fills in a service's bid: see Partition.Bid.
func (s *Scheduler) Bid(now Time, id ModelID, b *Bid) bool { return s.part.Bid(now, id, b) }

// ScaleRates multiplies the rates of services with a choice: see Partition.ScaleRates.
func (s *Scheduler) ScaleRates(by float64) { s.part.ScaleRates(by, 0, len(s.part.models)) }

// CommittedTime returns a sub-cluster's committed GPU time: see Ranker.CommittedTime.
func (s *Scheduler) CommittedTime(now Time, subCluster uint32, within Duration) Duration {
	r := s.rankers[subCluster]
	sum, _ := r.CommittedTime(now, within, 0, len(r.gpus))
	return sum
}
