// Package emu is the GPU for machines without one: backend/accel on the emulated device of package cuda. A batch of b
// takes ℓ(b) from Execute to its end and answers with a pattern that depends on each row's input, so that a test can
// tell whose output came back.
//
// It computes no model and has no clock, queue or memory of its own: slots are registered, rows are copied to the
// device's memory and back at its bandwidth, and one kernel stands for the model. The kernel takes the part of ℓ(b)
// that the copies leave. Faults are faults of the device (see Fault).
package emu
