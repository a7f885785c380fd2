// Package ortstring fills string tensors of ONNX Runtime with elements that may hold any bytes. The Go binding hands
// elements over as C strings, which end at their first zero byte; the function that does not is in the library since
// version 1.15 but not in the binding.
package ortstring
