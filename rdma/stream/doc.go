// Package stream carries the data plane's frames over one byte stream between two processes: TCP, TLS over TCP, or a
// Unix socket. It knows frames, the queue of data to write, the data being received, and the chains of reads that the
// other end must answer. It does not know nodes, providers or the meaning of messages.
//
//	Greet, Welcome   the handshake, before any frame
//	Frame            the header in front of each body
//	Writer           the queue of data for the other end, and the writing side of the socket
//	Chains           the reads that were requested and not yet answered
//	Reader           turns bytes into frames, messages and filled chains
//
// Concurrency: the Writer and the Chains of a stream share one lock, which their user provides. A chain is recorded
// and its frame queued under one hold of that lock, so answers arrive in the order of the requests. Call a method
// with the lock held unless its comment says otherwise. A Reader belongs to one goroutine and takes the lock itself
// when it needs it.
package stream
