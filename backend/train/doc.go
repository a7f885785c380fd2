// Package train trains small convolutional networks by writing forward pass, backward pass and
// optimiser step as one ONNX graph and letting ONNX Runtime run it. It also writes the trained
// network as an inference graph. ONNX Runtime has no training API in its CPU builds; none is needed.
//
// It chooses no data, architecture or schedule, and reads no file.
//
// All weights of a network live in one flat vector: the graph takes it (and the optimiser's two
// moment vectors) as inputs and returns new ones.
//
// Invariants:
//
//	T1  The same network, seed and batches give the same weights on one kind of processor.
//	T2  The inference graph computes exactly the forward pass that was trained.
//
// A Trainer belongs to one goroutine; several Trainers may run concurrently. Without cgo New returns
// ort.ErrMissing.
package train
