// Package executor runs the plans of package layers on one device. Parameters lie in a residency store, and the
// activations of a batch in one block. All launches of a batch are enqueued in one submission; batch sizes that
// repeat run as captured graphs, one command each.
//
// Enqueue is the fast path: it only adds commands to a submission. Run executes one layer at a time and calls a hook
// between layers, for early exits, preemption at a layer boundary, and profiles. Run also serves models whose
// parameters do not fit at once, because it needs only one layer's parameters on the device.
//
// Invariants:
//
//	E1  A batch's parameters and activations stay at their addresses from Enqueue to Release.
//	E2  A captured graph runs only while every address in it is the address at its capture.
//	E3  After warm-up, Enqueue of a captured batch allocates no memory.
//
// Concurrency: a Runtime and its models belong to one goroutine, the one that submits to the device.
package executor
