// Package layers compiles a graph to a plan for one batch size: an ordered list of layers, each a few kernel launches
// with explicit parameters and activations. A layer runs for the whole batch before the next begins, so its
// parameters are needed once (AdaInf §3.4.1).
//
// The package is pure: it knows kernels' structs and shapes, and no device. Package executor runs plans. Graphs come
// from ONNX files through backend/layered; Graph is the small form that this package reads.
//
// Compile fixes the batch, infers every shape, computes nodes that depend only on constants, folds batch
// normalisation into convolutions, fuses activations, biases and residual additions, and places activations in as
// little memory as their lifetimes allow. An unknown operator, or a shape that cannot be inferred, is an error that
// names it (ErrUnsupported).
//
// Invariants:
//
//	L1  two activations share memory only if no layer needs both;
//	L2  every launch has its addresses first in its struct, so a plan is bound to memory without knowing kernels;
//	L3  in plans of one graph for different batches, parameters with the same bytes have the same name.
package layers
