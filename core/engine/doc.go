// Package engine runs the decisions of core/sched on cores: it holds the requests between
// submission and answer, knows the models and the backends, keeps time, and carries the messages
// between partitions and rankers. It decides nothing about batches and does no network I/O: sessions
// hand it messages and take its messages at a port.
//
// # Locks
//
// Models are spread over partitions. A partition is one lock and everything under it: the queues
// of its models, their requests, their batches under way, their counters. A ranker is
// one lock and the GPUs of one sub-cluster. A burst takes its partition's lock once; a ranker's lock
// is taken once per batch and not per request.
//
//	I1  nobody holds two locks: what leaves a partition is copied into a turn, which then goes to
//	    the ranker, and what the ranker grants goes back to the partitions, one lock after the other;
//	I2  no port is called with a lock held;
//	I3  every accepted request ends once: handed to a backend that reports the batch done, or by
//	    one Outcome;
//	I4  a batch's Free reaches the ranker before its Execute leaves, so its Done cannot come first;
//	I5  memory is bounded: requests by RequestsMax, batches by GPUs, everything else by sessions.
//
// A turn is run by whoever brings the news: the goroutine that reads a frontend's socket takes a
// burst through partition, ranker and backend port without waking anyone. Loops exist for what
// only time brings; each is a poll function, so that the simulator runs them on virtual time.
//
// Models and backends come and go in the registry, which one goroutine owns.
package engine
