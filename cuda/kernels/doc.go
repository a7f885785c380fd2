// Package kernels holds the device code of the layer executor in two forms: as PTX compiled from csrc/*.cu, and as
// plain Go that the emulated device runs and that tests compare with. Each kernel takes one struct by value; the
// structs here and in csrc/kernels.h have the same layout, which a test checks.
//
// It knows shapes and addresses, not graphs: package layers chooses kernels and fills the structs. All tensors are
// row-major and dense. Numbers are float32 unless a name says otherwise; sums accumulate in float32 on the device and
// in float64 in Go. The Go forms are written for readability: they define what a kernel computes.
package kernels
