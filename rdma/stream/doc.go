// Package stream carries the data plane's frames over one byte stream between two processes: TCP, TLS over TCP, or a
// Unix socket. It knows of frames, of what waits to be written, of what is being taken in, and of the chains of reads
// that the other end is to answer. It knows nothing of nodes, of providers, or of what messages mean.
//
//	Greet, Welcome   the handshake, before anything else
//	Frame            the header of what travels
//	Writer           what waits for the other end, in order, and the socket's end
//	Chains           the reads that were asked for and are not answered
//	Reader           turns bytes into frames, messages and filled chains
//
// Writer and Chains of a stream share one lock, their user's: whoever queues a frame and notes what it asks for does
// both under it, so that answers come in the order of the questions. A method whose comment says nothing of it is
// called with the lock held. A Reader belongs to one goroutine, and takes the lock where it needs it.
package stream
