// Package core is the map of Downbeat's core; it contains no code.
//
//	core/model       the vocabulary that all rooms share.
//	core/profile     ℓ(b) = αb + β: fits, tables, the published model zoos. No time, no queues.
//	core/sched       decisions per request and batch: queues, candidates, grants, drops. No clock, goroutine, lock or I/O.
//	core/plan        decisions per epoch: sizes, assignment, prices. Pure functions of a snapshot.
//	core/limits      limits that several rooms must agree on.
//	core/invariants  rules that no scheduler may break.
//	core/engine      runs sched on cores: partitions, ranker, timers, mailboxes, the one Clock.
//	core/app         applications: graphs of stages, their checks and budgets.
//	core/arrivals    arrival times, drawn or read from a trace, for the simulator and the load generator.
//	core/sim         policies and trials in virtual time, on exact GPUs. Tests, bench and cmd only.
//	core/swarm       the engine in virtual time, with faults and checkers. Tests and bench only.
//	core/wire        the messages between frontends, scheduler and backends, and their encoding.
//	core/control     carries wire messages over TCP or within a process: sessions, handshakes, reconnects.
//	core/lead        elects the leading scheduler.
//	core/observe     health, metrics and explanations for operators.
//	core/guard       protection of public ports.
//	core/repo        the model repository on disk: config.pbtxt, versions, profiles.
//
// Imports run one way; docs/ARCHITECTURE.md has the picture.
package core
