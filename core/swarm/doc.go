// Package swarm runs whole clusters in virtual time, with lossy messages and failing machines, to test dependability.
// A Cluster drives core/engine with its sessions, and core/lead's election: the unchanged code that serves in
// production, between simulated frontends and backends. A seed determines everything, and the same seed replays the same
// run. Production code never imports this package, and nothing here reads a clock. Policies on GPUs that never fail are
// compared in core/sim.
//
// # Pages
//
//	cluster*.go                a Cluster: its models, its run, and the engines' turns
//	recovery.go, probe.go      the end of a run: faults stop, and every model must serve
//	options.go, script.go      the options of a run: drawn, written as text, simplified
//	front*.go, back*.go        simulated frontends and backends; peer.go and session.go are what they share
//	scheduler.go, election.go  a scheduler's process, and who leads
//	fault*.go, absence.go      what goes wrong, and when; network.go delays and loses messages
//	moves*.go, loading.go      plans that move models, and backends that load them
//	families.go                models in families
//	check*.go                  the checkers
//
// # A run
//
// One goroutine takes events from a heap ordered by (time, number), passes them to simulated frontends and backends, and
// polls the engine when it asks to be polled. Draw derives the options of a run from its seed: sizes, load, networks and
// faults, each fault absent in many runs and heavy in a few (a swarm). At the first violation, Run returns an error with
// the seed, the options and the latest events.
//
// # Standby schedulers
//
// Several schedulers elect a leader with the production code of core/lead, over a store in memory. Peers obey the one
// that control.Obeyed names. Schedulers die, pause, lose the store and lose links to peers. Frontends keep requests for
// the next leader as real ones do. Fault lists all faults; a Report counts each.
//
// # Lost messages
//
// Sessions run over reliable, ordered links, so a message is lost only together with its link. After the break nothing
// arrives in either direction, and each end notices after its own delay. The client opens a new session, a frontend
// submits its unanswered requests there, and the engine gives a lost backend's batches to others. Between the two
// notices a backend may exist twice.
//
// In addition, single messages (Submit, Cancel, Execute, Done, Outcome, outputs) get lost, come late or come twice. No
// link does that, but the engine must survive a peer with such a bug. After a lost Execute or Done, the watchdog cuts the
// backend. A duplicate Submit counts as a separate request if the first is in a batch or another id has overwritten its
// entry in the id window. A duplicate Done is a stray. After a lost Submit, Outcome or output, the frontend ends the
// request at its deadline plus a grace.
//
// # Checkers
//
// Checkers observe the ports and never act. Package invariants holds C1 to C5, which the fuzzers of core/sched and the
// engine's scripts also use:
//
//	C1 an accepted request ends once: an Execute or an Outcome names only queued requests; a request comes back from
//	   a batch only if its backend is lost or gives it back; requests of an ended session in a queue of more than 256
//	   may enter a batch until the engine has been polled;
//	C2 a queued request ends by its deadline, a batch within its watchdog; at the end nothing is left;
//	C3 a GPU's planned batches do not overlap, and it holds at most three unfinished ones;
//	C4 no batch is planned to start after its latest start, or to end after a deadline in it;
//	C5 no batch is empty or above its profile's largest size;
//	C6 a caller is answered once, whatever arrives;
//	C7 the engine's counters agree with the messages through its ports, and return to zero;
//	C8 without faults every output comes in time, and after the faults every model serves again;
//	C9 the same seed gives the same trace;
//	C10 no more requests are queued than the options allow, per model and in total;
//	C11 no backend accepts an order of an epoch older than one that it has obeyed; messages to and from a peer of the
//	    previous version pass that version's encoding;
//	C12 time passes: no moment holds endless events, and an engine asks for another turn at once only so often;
//	C13 no backend reads an input before the time that its frontend told, but for what trips vary and clocks differ;
//	V1  no request for a family is in a batch below its floor, and none for a model in another model's batch.
package swarm
