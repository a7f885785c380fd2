// Package accel runs batches on one cuda.Device, a GPU or an emulated one: the device.Executor that the
// layered and the emulated executors share. A Program determines the computation.
//
// A batch is one submission: copies in, the program's commands, copies out, each on a stream of its own behind
// an event of the one before. So the next batch can be submitted while one runs (Capabilities.Ahead): its copies in
// overlap that one's compute, and its compute that one's copies out. Slots are registered with the device, so
// the data plane writes into pinned memory. Rows that arrive ahead of their batch are copied at once on a fourth
// stream, into the slot's own device memory (Capabilities.Early). The streams wait for each other, the host never does.
//
// Programs that are not movable find their tensors in one of two areas; a batch has its area, its slot and its
// program until Wait has seen the end of its output copies, so no event guards memory.
//
// Invariants:
//
//	X1  A row is copied once if it arrived early, and its batch reads no older bytes: Submit waits on the
//	    device for every early copy of its slot, and abandoned rows are copied again.
//	X2  Nothing of a batch runs after Wait or a failed Submit has returned, unless the device hangs; then the
//	    executor is unusable, and returns device.ErrLost.
//	X3  Submit, Wait, Arrived and Abandon allocate nothing after warm-up.
//	X4  At most two batches of programs that are not movable are under way; a third gets device.ErrBusy, and
//	    so does one whose parameters do not fit beside those of the others.
package accel
