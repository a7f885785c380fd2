// Package layers turns a graph into a plan: an ordered list of layers, each a few kernel launches with
// explicit parameters and activations, for one batch size. A layer runs for the whole batch before the
// next begins, so its parameters are needed once (AdaInf §3.4.1).
//
// It is pure: it knows kernels' structs and shapes, and no device. Package executor runs plans. Graphs
// come from ONNX files through backend/layered; Graph is the small form that this package consumes.
//
// What Compile does: fixes the batch, infers every shape, computes what depends on constants only,
// folds batch normalisation into convolutions, fuses activations, biases and residual additions, and
// places activations in as little memory as their lifetimes allow. An operator it does not know is an
// error that names it (ErrUnsupported), and so is a shape that does not infer.
//
// Invariants: L1 two activations share memory only if no layer needs both. L2 every launch names its
// addresses first in its struct, so that a plan is bound to memory without knowing kernels. L3 the
// parameters of plans of one graph for different batches have the same names for the same bytes.
package layers
