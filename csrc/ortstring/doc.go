// Package ortstring does for tensors of ONNX Runtime what its Go binding does not. It fills string tensors with elements that
// may hold any bytes: the binding hands elements over as C strings, which end at their first zero byte; the function that
// does not is in the library since version 1.15 but not in the binding. And it makes tensors without dimensions over
// memory of the caller's, which the binding refuses.
package ortstring
