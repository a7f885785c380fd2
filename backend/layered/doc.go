// Package layered runs models on a GPU layer by layer with this repository's kernels: programs of cuda/executor
// behind the executor of backend/accel. It converts ONNX graphs to the form that cuda/layers consumes.
//
// Load refuses a graph with an operator, a type or a shape that the kernels do not support, with an error that wraps
// layers.ErrUnsupported and names it; such a model belongs to ONNX Runtime.
package layered
