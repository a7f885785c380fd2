// Package emu is an emulated GPU: it takes exactly ℓ(b) for a batch of b and answers with a pattern
// that depends on each row's input, so that a test can tell whose output came back.
//
// It computes no model. Everything around it is what real GPUs get: the same slots, the same fetch
// and reply. Tests can make it fail (see Fault).
package emu
