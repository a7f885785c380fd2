// Package emu is the GPU of those who have none: backend/accel on the emulated device of package cuda. A
// batch of b takes ℓ(b) from Execute to its end and answers with a pattern that depends on each row's
// input, so that a test can tell whose output came back.
//
// It computes no model and has no clock, queue or memory of its own: slots are registered, rows are copied
// to the device's memory and back at its bandwidth, one kernel stands for the model. The kernel takes what
// the copies leave of ℓ(b). What goes wrong is what the device does wrong (see Fault).
package emu
