package gpu

import (
	"downbeat.dev/cuda/layers"
)

// Rates are the hardware's peak rates; the defaults are an H200's.
type Rates struct {
	Memory float64 // bytes per second of device memory
	FLOP   float64 // per second, in fp32 without tensor cores, as for fp32 here and in PyTorch without TF32
	Matrix float64 // per second, in half precision on tensor cores
}

// H200 reaches 4.3 TB/s and, in large products of random numbers, 790 TFLOP/s in bfloat16; 66.9 TFLOP/s in fp32 is
// from its data sheet.
var H200 = Rates{Memory: 4.3e12, FLOP: 66.9e12, Matrix: 790e12}

// rateOf returns the arithmetic rate of a precision.
func (r Rates) rateOf(p layers.Precision) float64 {
	if p == layers.FP32 {
		return r.FLOP
	}
	return r.Matrix
}

// Row is one measurement. Times are microseconds on the device for a batch whose tensors are there, except cpu_us,
// which is the host's time from the first command to the return of Submit.
type Row struct {
	Graph     string   `json:"graph"`
	Precision string   `json:"precision"`
	Batch     int      `json:"batch"`
	OursUS    float64  `json:"ours_us"` // median
	P99US     float64  `json:"p99_us"`
	TorchUS   *float64 `json:"torch_us"` // PyTorch with CUDA graphs in the same call; null without it
	FloorUS   float64  `json:"floor_us"` // the larger of bytes over bandwidth and FLOP over rate
	Ratio     *float64 `json:"ratio"`    // ours over torch; null without torch
	Floor     float64  `json:"floor_ratio"`
	CPUUS     float64  `json:"cpu_us"`
	Allocs    float64  `json:"allocs"` // by the host, per batch
	Layers    int      `json:"layers"`
	Kernels   string   `json:"kernels"` // number of launches of each kernel, of cublasLt and of cudnn

	LayerTimes []LayerTime `json:"layer_times,omitempty"`
}

// LayerTime is the time of a layer by itself: the least of several runs, without a graph, so short layers include
// their launches.
type LayerTime struct {
	Layer   string  `json:"layer"`
	Op      string  `json:"op"`
	Kernels string  `json:"kernels"`
	US      float64 `json:"us"`
	FloorUS float64 `json:"floor_us"`
}
