// Package sim runs scheduling decisions in virtual time on exact GPUs, to compare policies. A World holds the arrivals,
// the models and the GPUs, and asks a Server what to run: a policy of bench/policy, or Downbeat, which is core/sched
// unchanged. The same World and the same Server give the same run. Nothing here reads a clock, and production code
// uses only the trials that admit sessions (Trial). Clusters whose messages and machines fail are in core/swarm.
//
// # Pages
//
//	world*.go            a World: its models, its batches, its spare work, its run
//	downbeat*.go         core/sched as the Server that a World drives
//	frames.go            sessions of frames in a World
//	trial*.go            the trial that admits one more session
//
// # Checks
//
// A World panics if one of these is violated:
//
//	V1 no answer is below its family's floor;
//	V2 no batch is planned into a step of spare work.
package sim
