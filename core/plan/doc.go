// Package plan makes the decisions of the epoch: what stays the same for 100 ms to some minutes while
// core/sched decides each moment. It is the one brain above it: everything that wants GPU time
// states a value and a demand, and GPU time has one price per kind of GPU, which decides who gets it.
//
// Every decision is a pure function of a snapshot: the same snapshot gives the same plan (V6). There
// is no clock, goroutine, randomness or map here, and no import but core/profile and core/model. Where a decision
// needs history, the history is an argument and a result. Every decision has a checker, Check…, that
// shares no code with it and says what is wrong with a plan in words; tests, fuzzing and whoever
// applies a plan call it.
//
// Decisions so far, one file each:
//
//	Size        GPUs for a new model                                       Symphony §4.2
//	Cost        target batch and GPU time per request of a queue
//	Targets     the share u* of GPU time that a cluster may be asked for
//	Assign      services to sub-clusters, under memory, load and moves       Symphony §4.7, A.1
//	Prices      one price per kind of GPU and the variant of each family     UNIFIED U1, U3
//	Signals     GPUs wanted at full accuracy, now, at the floors             UNIFIED U11
//	Relieve     how far load is taken off, in which order                    UNIFIED U10
//	Scaler      GPUs that a cluster should have, with hysteresis             Symphony §4.4
//	Drain       which GPUs go when a cluster shrinks
//	Reconfigure   steps from what is present to what is wanted               Symphony §4.1, UNIFIED S6
//	PlaceModels   the models that each GPU should hold                      Symphony §4.7, UNIFIED S3, S4
//	WeighEpoch    whether a plan gains more than its moves cost             UNIFIED S6
//	Rollout       the step that is due while a plan is applied              UNIFIED S6
//	Pricer        prices renewed ten times a second, and what is sold       UNIFIED U3
//	SubClusterFor, KindProfile, SLOInForce, LargestHomes,
//	OrderVariants, FloorsOf, LoadNow   what follows at once from what backends say
//	SplitLatency  an application's latency among its stages                  UNIFIED U9
//	Drift         whether a period's inputs differ from those trained for    AdaInf §3.2, mended
//	ValueTraining   what GPU time is worth to a learner                      UNIFIED U8
//	Admit         whether a session may open, and what could instead         Rim §3.4, UNIFIED U9
//
// Units: times are time.Duration, or float64 seconds where they are prices or sums; rates are
// requests/s; demand is in GPUs (seconds of GPU time per second); memory is in bytes; accuracy lies in
// 0…1. Input that makes no sense is refused with the field, the value and what is allowed; input that
// makes sense and cannot be met fails with an InfeasibleError: which constraint, and by how much.
//
// All functions may be called concurrently; those that write to an argument say so.
package plan
