// Package plan makes the decisions of an epoch, which hold for 100 ms to some minutes; core/sched decides about each
// request and batch. Everything that needs GPU time states a value and a demand. GPU time has one price per kind of
// GPU, and the price decides who gets it.
//
// Every decision is a pure function of a snapshot: the same snapshot gives the same plan (V6). The package has no
// clock, goroutine, randomness or map, and imports only core/profile and core/model. If a decision needs history, the
// history is an argument and a result. Every decision has a checker, Check…, that shares no code with it and
// describes the errors of a plan. Tests, fuzzing and the code that applies a plan call it.
//
// The decisions, one file each:
//
//	Size          GPUs for a new model                                          Symphony §4.2
//	Cost          target batch and GPU time per request of a queue
//	Targets       the share u* of its GPU time that a cluster may use
//	Assign        services to sub-clusters, under memory, load and moves        Symphony §4.7, A.1
//	Prices        one price per kind of GPU and the variant of each family      UNIFIED U1, U3
//	Signals       GPUs wanted at full accuracy, now, at the floors              UNIFIED U11
//	Relieve       how far load is shed, and in which order                      UNIFIED U10
//	Scaler        GPUs that a cluster should have, with hysteresis              Symphony §4.4
//	Drain         which GPUs go when a cluster shrinks
//	Reconfigure   steps from the present placement to the wanted one            Symphony §4.1, UNIFIED S6
//	PlaceModels   the models that each GPU should hold                          Symphony §4.7, UNIFIED S3, S4
//	WeighEpoch    whether a plan gains more than its moves cost                 UNIFIED S6
//	Rollout       the step that is due while a plan is applied                  UNIFIED S6
//	Pricer        prices renewed ten times a second, and the GPU time sold      UNIFIED U3
//	SubClusterFor, KindProfile, SLOInForce, LargestHomes,
//	OrderVariants, FloorsOf, LoadNow   direct consequences of backends' announcements
//	SplitLatency  an application's latency among its stages                     UNIFIED U9
//	Drift         whether a period's inputs differ from the training data       AdaInf §3.2, corrected
//	TrainingValue the value of GPU time to a learner, by its TrainingGain       UNIFIED U8
//	WeighTraining the learners' weights in spare time, by these values          UNIFIED U8
//	Admit         whether a session may open, and which one could instead       Rim §3.4, UNIFIED U9
//
// Units: times are time.Duration, or float64 seconds for prices and sums. Rates are in requests/s, demand in GPUs
// (seconds of GPU time per second), memory in bytes, accuracy in 0…1. Invalid input gives an error that names the
// field, the value and the allowed values. Valid input that cannot be satisfied gives an InfeasibleError, which names
// the constraint and the amount by which it is missed.
//
// All functions may be called concurrently; those that write to an argument say so.
package plan
