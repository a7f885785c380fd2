// Package heap returns memory freed by C code to the system. C's allocator keeps freed memory for later use. For the
// sessions of ONNX Runtime this can be as much as the weights of the unloaded models.
package heap
