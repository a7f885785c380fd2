// Package sim runs scheduling decisions in virtual time: World with exact GPUs for comparisons of
// policies, Cluster with lossy messages and failing backends for dependability. World drives
// core/sched, Cluster drives core/engine with its sessions: the code that serves in production,
// unchanged. Everything is drawn from a seed and replays from it. Production code never imports
// this package, and nothing here reads a clock.
//
// # Cluster
//
// One goroutine takes events from a heap ordered by (time, number), lets simulated frontends and
// backends act on them, and polls the engine when it asks to be. Draw makes the options of a run
// from its seed: sizes, load, networks and faults, each fault absent in many runs and heavy in a
// few (a swarm). Run returns an error with the seed, the options and the latest events as soon as
// a checker objects.
//
// # Schedulers that stand by
//
// Several schedulers elect a leader with the production code of core/lead, over a store in memory; peers obey the
// one that control.Obeyed names. Schedulers die, pause, lose the store and are cut off from peers. Frontends keep requests
// for the next leader as the live ones do. Fault lists all that can go wrong; a Report counts each.
//
// # What a lost message means
//
// Sessions run over reliable, ordered links. So a message is lost together with its link: from the
// break on nothing arrives in either direction, each end notices after a time of its own, the
// client opens a new session, a frontend submits there what it still waits for, and the engine
// gives a lost backend's batches to others. Between the break's two notices a backend may be
// there twice.
//
// On top of that single messages (Submit, Cancel, Execute, Done, Outcome, outputs) get lost, come
// late or twice, although no link does that: the engine must survive a peer with such a bug. A lost
// Execute or Done ends with the watchdog cutting the backend; a Submit that comes twice while the
// first is in a batch, or whose seat another id has taken over, is a request of its own; Done twice is
// a stray. A lost Submit, Outcome or output is ended by its frontend, at the deadline and some grace.
//
// # Checkers
//
// They watch the ports and never act; C1 to C5 are package invariants', which the fuzzers of core/sched and the engine's
// scripts report to, too:
//
//	C1 a request that was taken in ends once: an Execute or an Outcome only names requests that are
//	   queued; a request comes back from a batch only when its backend is lost or gives it back; what a
//	   session that ended had in a queue of more than 256 may enter a batch until the engine has been polled;
//	C2 a queued request ends by its deadline, a batch within its watchdog; at the end nothing is left;
//	C3 a GPU's batches do not overlap in plan, and it holds at most three that are not done;
//	C4 no batch is planned to start after its latest start, or to end after a deadline in it;
//	C5 no batch is empty or above its profile's maximum;
//	C6 a caller is answered once, whatever arrives;
//	C7 the engine's counters agree with what went through its ports, and return to zero;
//	C8 without faults every output comes in time, and once faults are over every model serves again;
//	C9 the same seed gives the same trace;
//	C10 no more requests are queued than the options allow, of a model and in all;
//	C11 no backend takes an order of an epoch older than one that it has obeyed; what a peer of the version
//	    before says and hears passes that version's encoding;
//	C12 time passes: no moment holds events without end, and an engine asks only so often for another turn at once;
//	V1  no request for a family is in a batch below its floor, and none for a model in another's.
//
// A World holds, and panics otherwise:
//
//	V1 no answer is below its family's floor;
//	V2 no batch is planned into a step of spare work.
package sim
