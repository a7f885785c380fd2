// Package ortstring creates tensors of ONNX Runtime that its Go binding cannot create.
//
// It fills string tensors with elements of any bytes. The binding passes elements as C strings, which end at their
// first zero byte. The library has a function without that limit since version 1.15, but the binding does not. The
// package also creates tensors without dimensions over the caller's memory, which the binding refuses.
package ortstring
