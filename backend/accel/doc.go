// Package accel runs batches on one cuda.Device, a GPU or an emulated one: the device.Executor that the
// layered and the emulated executors share. What it computes is a Program's business.
//
// A batch is one submission: copies in, the program's commands, copies out. Slots are registered with the
// device, so the data plane writes into pinned memory. Rows that arrive ahead of their batch are copied at
// once on a stream of their own, into the slot's own device memory, while the batch before computes; the
// compute stream waits for them by an event, the host never does (device.Early).
//
// Invariants:
//
//	X1  A row is copied once if it arrived early, and its batch reads no older bytes: Execute waits on the
//	    device for every early copy of its slot, and what Abandon was called for is copied again.
//	X2  Nothing of a batch runs after Execute has returned, unless the device hangs; then the executor is of
//	    no more use, and says so with device.ErrLost.
//	X3  Execute, Arrived and Abandon allocate nothing after warm-up.
package accel
