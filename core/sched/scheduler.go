package sched

// Scheduler decides which requests form a batch, when it starts and on which GPU, and which
// requests can no longer be served. It is a deterministic state machine: every call takes now,
// outputs are drained with Actions, and NextWake says when to call Advance next.
//
// It composes the two halves that the engine spreads over cores: Partition (Symphony's
// ModelThread: the queues and candidates of some models) and Ranker (RankThread: the GPUs of one
// sub-cluster and the candidates waiting for one). One goroutine owns a Scheduler.
//
//	func New(o Options) *Scheduler
//	func (s *Scheduler) AddModel(now Time, id ModelID, m Model) error      // Model{Profile, SLO, QueueMax, SubCluster…}
//	func (s *Scheduler) RemoveModel(now Time, id ModelID)
//	func (s *Scheduler) AddGPU(now Time, id GPUID, g GPU) error            // GPU{SubCluster, …}; free at now
//	func (s *Scheduler) RemoveGPU(now Time, id GPUID)
//	func (s *Scheduler) SetNetworkDelay(ctrl, data Duration)               // d_ctrl, d_data
//	func (s *Scheduler) Enqueue(now Time, r Request) Reason                // ReasonNone: accepted
//	func (s *Scheduler) Cancel(now Time, m ModelID, id RequestID) bool     // true: it was still queued
//	func (s *Scheduler) Complete(now Time, b BatchID, g GPUID, freeAt Time) error // corrects free_at
//	func (s *Scheduler) Advance(now Time)
//	func (s *Scheduler) NextWake() Time
//	func (s *Scheduler) Actions() (batches []Batch, drops []Drop)          // valid until the next call
type Scheduler struct{}
