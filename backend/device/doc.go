// Package device is a backend's interface to a GPU: the Executor that runs batches, the Model that it
// runs and the Slot of memory that it runs them on.
//
// It fetches nothing, sends nothing and decides nothing.
//
// Words: a row is one request's part of a batch; a slot holds one batch of any model, inputs and
// outputs; the payload of a row is its input tensors (or its output tensors) concatenated in the
// model's order, as it travels.
//
// Invariants:
//
//	D1  Row i of tensor k directly follows row i-1 of the same tensor, so that the first n rows are
//	    the contiguous tensor that an executor wants, for every n. Inputs land there by a chain of
//	    reads and outputs are sent from there, without a copy.
//	D2  Tensors begin at multiples of Align within their slot.
//	D3  A slot is owned by one batch from its first read until its last output has been sent.
//	D4  An executor touches the first Rows rows of a batch only, and only from Submit to the end of Wait.
//
// Models and slots are immutable after their creation, except for a model's Samples, which the warm-up may guess.
package device
