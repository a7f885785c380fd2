// Package heap returns to the system what C code has freed. C's allocator keeps freed memory for later, which for
// the sessions of ONNX Runtime can be as much as the weights of the models that were unloaded.
package heap
