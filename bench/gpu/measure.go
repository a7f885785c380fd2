package gpu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/bench/median"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/layers"
)

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

	row.OursUS, row.P99US, row.CPUUS = median.Percentile(t.device, 50), median.Percentile(t.device, 99), median.Percentile(t.host, 50)
	row.Allocs = t.allocs
	row.FloorUS = max(bytes/c.Rates.Memory, float64(plan.FLOP())/c.Rates.rateOf(c.Precision)) * 1e6
	row.Floor, row.Layers = row.OursUS/row.FloorUS, len(plan.Layers)
	return row, nil
}
