// Package layered runs models on a GPU layer by layer with our own kernels: programs of cuda/executor behind
// the executor of backend/accel. It converts ONNX graphs to the form that cuda/layers consumes.
//
// A graph with an operator, a type or a shape that the kernels do not have is refused by Load with an
// error that wraps layers.ErrUnsupported and names it; such a model belongs to ONNX Runtime.
package layered
