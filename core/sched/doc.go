// Package sched decides which requests form a batch, when the batch starts and on which GPU, and which requests can
// no longer be served. It does not read a clock, run goroutines, lock, do I/O, draw random numbers or carry messages:
// every call takes now, outputs are values that the driver drains, and NextWake says when to call Advance next.
//
// # Halves
//
// Partition is Symphony's ModelThread (§4.5): the queues and candidates of some models. Ranker is its RankThread: the
// GPUs of one sub-cluster and the candidates that want one. They share nothing and exchange three plain values, which
// a driver may carry through mailboxes:
//
//	Candidate  Partition → Ranker   a model's newest candidate: waiting, ripe, or withdrawn
//	Grant      Ranker → Partition   a GPU for the model's candidate
//	Free       Partition → Ranker   the answer to exactly one Grant: what the GPU does now, and until when
//
// With spare work there is a fourth, and a Ranker orders steps as a Partition orders batches:
//
//	Forecast   Partition → Ranker   when a model may want GPUs
//	SpareStep  Ranker → driver      a step of spare work for an idle GPU, answered by one EndSpare
//
// A Candidate replaces the model's earlier ones. A Ranker ignores a Candidate whose Seq is not newer, so Candidates
// may arrive in any order. A Partition decides again when a Grant arrives, so a Grant for a candidate that has
// changed or gone is harmless: the GPU is returned unused. The Epoch of a Free or Complete for a GPU that has been
// removed is old, so it is ignored. Scheduler composes both halves in one goroutine.
//
// # Invariants
//
// The fuzz tests check them. Package invariants calls I1 C1, I2 C3, I3 C4 and I4 C5.
//
//	I1 every accepted request ends exactly once: in a batch, as a drop, or by a Cancel that returned true;
//	I2 a GPU's batches never overlap in plan: ExecAt ≥ the Finish of the batch before;
//	I3 ExecAt ≤ Latest: no batch is sent that misses a deadline in it;
//	I4 no batch is larger than its profile's Max, none is empty;
//	I5 every Grant is answered by exactly one Free;
//	I6 a queue holds at most QueueMax requests, early ones included, outputs hold what one burst produced;
//	I7 the same calls give the same outputs;
//	I8 once its messages have arrived, in whatever order, a Ranker knows each model's newest Candidate;
//	I9 no batch on a GPU of a group has a request that avoids the group, unless its queue is longer than 256;
//	I10 no early request is in a batch that was sent before its time.
//
// # Concurrency
//
// None: one goroutine at a time may use a Partition, Ranker or Scheduler. Two of them never share memory.
package sched
