// Package executor runs plans of package layers on one device: parameters in a residency store, the
// activations of a batch in one block, launches enqueued in one submission, and steady batch sizes as
// captured graphs that one command enqueues.
//
// Enqueue is the fast path: it only adds commands. Run goes layer by layer with a hook between layers:
// for early exits, for preemption at a layer boundary and for profiles; it also serves a model whose
// parameters do not all fit at once, a layer's at a time.
//
// Invariants: E1 a batch's parameters and activations stay where they are from Enqueue to Release.
// E2 a captured graph runs only while every address in it is the one that was captured. E3 after warm-up
// Enqueue of a captured batch allocates nothing.
//
// Concurrency: a Runtime and its models belong to one goroutine, the one that submits to the device.
package executor
