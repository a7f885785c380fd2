// Package engine runs the decisions of core/sched on cores. It holds the requests between submission and answer,
// knows the models and the backends, keeps time, and carries the messages between partitions and rankers. It makes no
// decisions about batches and does no network I/O: sessions call it with messages and receive its messages at a port.
//
// # Locks
//
// Models are spread over partitions. A partition is one lock and the state under it: the queues of its models, their
// requests, their batches in flight, their counters. A ranker is one lock and the GPUs of one sub-cluster. A burst
// takes its partition's lock once; a ranker's lock is taken once per batch and not per request.
//
//	I1  no goroutine holds two locks: the output of a partition is copied into a turn, which then goes to
//	    the ranker, and the ranker's grants go back to the partitions, one lock after the other;
//	I2  no port is called with a lock held;
//	I3  every accepted request ends once: in a batch that a backend reports done, or by one Outcome;
//	I4  a batch's Free reaches the ranker before its Execute leaves, so its Done cannot come first;
//	I5  memory is bounded: requests by RequestsMax, batches by GPUs, everything else by sessions.
//
// The goroutine that receives a message also runs the turn: the one that reads a frontend's socket takes a burst
// through partition, ranker and backend port without waking another. Loops exist only for timers; each is a poll
// function, so the simulator can run them in virtual time.
//
// The registry handles models and backends that come and go. One goroutine owns it.
package engine
