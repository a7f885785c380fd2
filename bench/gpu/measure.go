package gpu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
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

// Config is the configuration of Run.
type Config struct {
	Batches   []int
	Rounds    int // measured batches per row, after as many warm-up batches
	Rates     Rates
	Timeout   time.Duration
	Precision layers.Precision
	Tune      bool   // see executor.Config
	Libraries string // likewise
	Torch     TorchFunc
	Layers    bool // also the time of each layer, run alone
}

// TorchFunc measures a graph with PyTorch; ok is false if PyTorch is unavailable. nil: none.
type TorchFunc func(ctx context.Context, graph, precision string, batch int) (us float64, ok bool, err error)

// Graphs are the measured graphs, by name.
var Graphs = map[string]func() *onnx.Model{
	"resnet50":  func() *onnx.Model { return ResNet50(224, 1) },
	"mobilenet": func() *onnx.Model { return MobileNet(224, 1) },
	"bert-base": func() *onnx.Model { return BERT(BERTBase, 1) },
	trial:       func() *onnx.Model { return BERT(BERTConfig{2, 64, 2, 128, 32, 100}, 1) },
}

// trial is a small graph, to try the command; it also makes the images of the throughput small.
const trial = "trial"

// Run measures one graph at every batch size, and calls report with each row.
func Run(ctx context.Context, dev *cuda.Device, c Config, graph string, m *onnx.Model, report func(Row)) (err error) {
	r, err := c.openRuntime(dev)
	if err != nil {
		return err
	}
	defer r.Close()

	b, err := openRig(dev, r, m, slices.Max(c.Batches), c.Precision)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.closeRig()) }()

	rng := rand.New(rand.NewPCG(1, 1))
	for _, n := range c.Batches {
		b.randomInputs(rng, n, 2)

		// runBatch copies the inputs to the device and proves that the graph works before it is timed.
		if _, err := b.runBatch(ctx, n, false); err != nil {
			return fmt.Errorf("%s, batch of %d: %w", graph, n, err)
		}

		row, err := c.measureBatch(ctx, b, n)
		if err != nil {
			return fmt.Errorf("%s, batch of %d: %w", graph, n, err)
		}
		row.Graph = graph

		if c.Torch != nil {
			us, ok, err := c.Torch(ctx, graph, row.Precision, n)
			if err != nil {
				return fmt.Errorf("torch, %s, batch of %d: %w", graph, n, err)
			}
			if ok {
				ratio := row.OursUS / us
				row.TorchUS, row.Ratio = &us, &ratio
			}
		}
		report(row)
	}
	return nil
}

// openRuntime opens a runtime with half of the free device memory, 16 GiB at most.
func (c Config) openRuntime(dev *cuda.Device) (*executor.Runtime, error) {
	free, _, err := dev.MemoryInfo()
	if err != nil {
		return nil, err
	}
	return executor.Open(dev, executor.Config{DeviceBytes: min(free/2, 16<<30), PinnedBytes: 64 << 20, Capture: true, Tune: c.Tune, Libraries: c.Libraries})
}

// measureBatch times batches of n and compares them with the floor.
func (c Config) measureBatch(ctx context.Context, b *rig, n int) (Row, error) {
	row := Row{Precision: c.Precision.String(), Batch: n}
	t, err := c.timeBatches(ctx, b, n)
	if err != nil {
		return row, err
	}
	choices, err := b.model.Choices(n)
	if err != nil {
		return row, err
	}

	row.Kernels = tallyKernels(choices)
	if c.Layers {
		if row.LayerTimes, err = c.timeLayers(ctx, b, n, choices); err != nil {
			return row, err
		}
	}

	plan, err := b.model.Plan(n)
	if err != nil {
		return row, err
	}

	// The floor: the time of the memory traffic or of the arithmetic, whichever is longer.
	bytes := float64(plan.ParamBytes())
	for i := range b.memory {
		bytes += float64(b.memory[i].Bytes()) / float64(b.plan.Batch) * float64(n)
	}

	slices.Sort(t.device)
	slices.Sort(t.host)
	row.OursUS, row.P99US, row.CPUUS = t.device[len(t.device)/2], t.device[len(t.device)*99/100], t.host[len(t.host)/2]
	row.Allocs = t.allocs
	row.FloorUS = max(bytes/c.Rates.Memory, float64(plan.FLOP())/c.Rates.rateOf(c.Precision)) * 1e6
	row.Floor, row.Layers = row.OursUS/row.FloorUS, len(plan.Layers)
	return row, nil
}

// A row ends after Rounds batches, or after rowLimitUS of device time with at least roundsMin.
const (
	warmRounds = 20
	roundsMin  = 20
	rowLimitUS = 2e6
)

// timings are the times of a row's batches in µs, on the device and on the host, and the allocations per batch.
type timings struct {
	device, host []float64
	allocs       float64
}

// timeBatches runs batches of n, after a warm-up.
func (c Config) timeBatches(ctx context.Context, b *rig, n int) (t timings, err error) {
	from, err := b.dev.NewEvent()
	if err != nil {
		return t, err
	}
	defer from.Free()

	t.device, t.host = make([]float64, 0, c.Rounds), make([]float64, 0, c.Rounds)
	var before, after runtime.MemStats
	var spent float64
	for i := -min(c.Rounds, warmRounds); i < c.Rounds && (spent < rowLimitUS || len(t.device) < roundsMin); i++ {
		// Count allocations from the end of the warm-up.
		if i == 0 {
			runtime.ReadMemStats(&before)
		}
		took, cpu, err := b.runOnce(n, from, c.Timeout)
		if err != nil {
			return t, err
		}

		if i >= 0 {
			t.device, t.host = append(t.device, took), append(t.host, cpu)
			spent += took
		}
		if ctx.Err() != nil {
			return t, ctx.Err()
		}
	}

	runtime.ReadMemStats(&after)
	t.allocs = float64(after.Mallocs-before.Mallocs) / float64(len(t.device))
	return t, nil
}

// tallyKernels counts launches by kernel.
func tallyKernels(choices []executor.Choice) string {
	count := map[string]int{}
	for _, c := range choices {
		count[c.Kernel]++
	}

	var all []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		all = append(all, fmt.Sprintf("%s×%d", name, count[name]))
	}
	return strings.Join(all, " ")
}

// timeLayers times each layer of a batch by itself.
func (c Config) timeLayers(ctx context.Context, b *rig, n int, choices []executor.Choice) ([]LayerTime, error) {
	plan, err := b.model.Plan(n)
	if err != nil {
		return nil, err
	}
	all := make([]LayerTime, len(plan.Layers))
	for i := range all {
		l := &plan.Layers[i]
		floor := max(float64(l.Bytes)/c.Rates.Memory, float64(l.FLOP)/c.Rates.rateOf(c.Precision)) * 1e6

		var its []executor.Choice
		for _, k := range choices {
			if k.Layer == l.Name && k.Op == l.Op {
				its = append(its, k)
			}
		}
		all[i] = LayerTime{Layer: l.Name, Op: l.Op, Kernels: tallyKernels(its), FloorUS: floor, US: math.Inf(1)}
	}

	// The least of five runs: a layer is too short to be timed by one.
	for range 5 {
		_, err := b.model.Run(ctx, b.stream, n, b.inputs, b.outputs, func(i int, _ *layers.Layer, took time.Duration) executor.Action {
			all[i].US = min(all[i].US, float64(took)/1e3)
			return executor.Continue
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// runOnce runs a batch whose tensors are on the device, and returns its device time and the host's time to enqueue
// it.
func (b *rig) runOnce(n int, from *cuda.Event, limit time.Duration) (deviceUS, hostUS float64, err error) {
	start := time.Now()
	b.sub.Reset()
	b.sub.Record(b.stream, from)
	if err := b.model.Enqueue(&b.sub, b.stream, n, b.inputs, b.outputs); err != nil {
		return 0, 0, err
	}

	b.sub.Record(b.stream, b.done)
	if err := b.dev.Submit(&b.sub); err != nil {
		return 0, 0, err
	}

	// Host time ends with the submission: the rest is waiting.
	hostUS = float64(time.Since(start)) / 1e3
	if err := b.dev.WaitFor(limit, b.done); err != nil {
		return 0, 0, err
	}
	if err := b.model.Release(n, nil); err != nil {
		return 0, 0, err
	}

	took, err := b.dev.Elapsed(from, b.done)
	return float64(took) / 1e3, hostUS, err
}
