// Package gpu checks and measures the layer executor: every operator and model against ONNX Runtime's CPU results,
// and the speed of ResNet-50-, MobileNet- and BERT-shaped graphs beside PyTorch and beside the hardware's lower
// bounds. On a machine without a GPU, the checks run on the emulated device, which runs the same plans with kernels
// in Go; speeds are measured only on a GPU.
package gpu
