// Package core is the map of Downbeat's core; it holds no code of its own.
//
//	core/profile  ℓ(b) = αb + β: fits, tables, the published model zoos. No time, no queues.
//	core/sched    decisions: queues, candidates, grants, drops. No clock, goroutine, lock or I/O.
//	core/plan     decisions of the epoch: sizes, assignment, prices. Pure functions of a snapshot.
//	core/engine   runs sched on cores: partitions, ranker, timers, mailboxes, the one Clock.
//	core/arrivals  when requests come, drawn or read: what the simulator simulates and the load generator sends.
//	core/sim      virtual time over the same code, with faults and checkers. Tests, bench and cmd only.
//	core/wire     the messages between frontends, scheduler and backends, and their encoding.
//	core/control  carries wire messages over TCP or within a process: sessions, handshakes, reconnects.
//	core/repo     the model repository on disk: config.pbtxt, versions, profiles.
//
// Imports run one way: engine → sched → profile; control → engine, wire.
package core
