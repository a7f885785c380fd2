package drift

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda/layers"
	"downbeat.dev/models"
)

// ratedGPU is a GPU with stated rates, not measured ones.
type ratedGPU struct {
	flop, memory     float64       // per second: multiplications and additions, and bytes of device memory
	pinned, pageable float64       // bytes per second of copies between the device and the host's memory
	launch, command  time.Duration // additional time of each launch, and of each copy
}

// v100 has the rates of the paper's GPU: arithmetic and memory from its data sheet, the practical rate of PCIe 3.0
// ×16, and the emulated device's factor of three for pageable memory and time per command.
var v100 = ratedGPU{flop: 15.7e12, memory: 900e9, pinned: 12e9, pageable: 4e9, launch: 5 * time.Microsecond, command: 2 * time.Microsecond}

// rates describes the rates for claims.
func (g ratedGPU) rates() string {
	return fmt.Sprintf("at stated rates of %.1f TFLOP/s, %.0f GB/s, PCIe %.0f GB/s pinned and %.0f pageable, %v a launch, %v a copy",
		g.flop/1e12, g.memory/1e9, g.pinned/1e9, g.pageable/1e9, g.launch, g.command)
}

// computeTime returns the time of a layer: its launches, and the longer of its arithmetic and its memory traffic.
func (g ratedGPU) computeTime(l *layers.Layer) time.Duration {
	work := max(float64(l.FLOP)/g.flop, float64(l.Bytes)/g.memory)
	return time.Duration(len(l.Steps))*g.launch + time.Duration(work*1e9)
}

// copyTime returns the time of a copy between the device and the host.
func (g ratedGPU) copyTime(bytes int64, rate float64) time.Duration {
	return g.command + time.Duration(float64(bytes)/rate*1e9)
}

// layerWork is one layer of a network with one batch size.
type layerWork struct {
	took    time.Duration // if all its contents are on the device
	weights []int         // layers whose parameters it reads: its own, and those that it shares
	uses    []int         // activations that it reads or writes, by number
}

// activation is an intermediate output of a batch.
type activation struct {
	bytes       int64
	first, last int // the first and the last layer that need it
}

// batchWork is a network with one batch size.
type batchWork struct {
	layers      []layerWork
	activations []activation
}

// took returns the sum over the layers.
func (b *batchWork) took() (sum time.Duration) {
	for _, l := range b.layers {
		sum += l.took
	}
	return sum
}

// activationBytes returns the sum over the activations, which training keeps from the forward to the backward pass.
func (b *batchWork) activationBytes() (sum int64) {
	for _, a := range b.activations {
		sum += a.bytes
	}
	return sum
}

// liveBytes returns the peak size of intermediates if each is freed after its last use, as in inference.
func (b *batchWork) liveBytes() (most int64) {
	for layer := range b.layers {
		live := int64(0)
		for _, a := range b.activations {
			if a.first <= layer && layer <= a.last {
				live += (a.bytes + 255) &^ 255
			}
		}
		most = max(most, live)
	}
	return most
}

// layeredNetwork is a network of the repository as the layer executor runs it.
type layeredNetwork struct {
	gpu     ratedGPU
	graph   *layers.Graph
	params  []int64 // bytes of parameters that a layer introduces; 0: none
	batches map[int]*batchWork
}

// openLayered reads a network, or the part of one up to an early exit's outputs.
func openLayered(dir, name string, gpu ratedGPU) (*layeredNetwork, error) {
	r, exit, ok := models.FindExit(name)
	if !ok {
		return nil, fmt.Errorf("no recipe %s", name)
	}
	part, err := onnx.ReadPart(&repo.Model{Name: name, ONNXPath: filepath.Join(dir, r.Name(), "1", "model.onnx"), ExitStage: exit})
	if err != nil {
		return nil, err
	}
	graph, err := layered.Graph(part.Model)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}

	n := &layeredNetwork{gpu: gpu, graph: graph, batches: map[int]*batchWork{}}
	_, err = n.batch(batchMax)
	return n, err
}

// batch returns the work of a batch size. It compiles the plan at the first call.
func (n *layeredNetwork) batch(size int) (*batchWork, error) {
	if n.batches[size] != nil {
		return n.batches[size], nil
	}
	p, err := layers.Compile(n.graph, size, layers.FP32)
	if err != nil {
		return nil, err
	}

	work := &batchWork{}
	owner, params := map[string]int{}, make([]int64, len(p.Layers))
	number := map[int]int{} // number of an activation, by its buffer

	for i := range p.Layers {
		l := layerWork{took: n.gpu.computeTime(&p.Layers[i])}

		// A parameter belongs to the first layer that needs it, as the executor packs them.
		for _, k := range p.Layers[i].Params {
			name := p.Params[k].Name
			if _, known := owner[name]; !known {
				owner[name] = i
				params[i] += (int64(len(p.Params[k].Data)) + 255) &^ 255
			}
			if !slices.Contains(l.weights, owner[name]) {
				l.weights = append(l.weights, owner[name])
			}
		}

		for _, s := range p.Layers[i].Steps {
			for _, b := range s.Buffers() {
				if work.addActivation(p, b, number) && !slices.Contains(l.uses, number[b]) {
					l.uses = append(l.uses, number[b])
				}
			}
		}
		work.layers = append(work.layers, l)
	}

	n.params, n.batches[size] = params, work
	return work, nil
}

// addActivation adds an activation or output of a plan; false for other buffers.
func (b *batchWork) addActivation(p *layers.Plan, buffer int, number map[int]int) bool {
	x := &p.Buffers[buffer]
	if x.Kind != layers.Activation && x.Kind != layers.Output {
		return false
	}
	if _, known := number[buffer]; known {
		return true
	}

	a := activation{x.Bytes, x.First, x.Last}
	// A network's outputs stay until the job ends: the next network may need them.
	if x.Kind == layers.Output {
		a.last = len(p.Layers)
	}
	number[buffer] = len(b.activations)
	b.activations = append(b.activations, a)
	return true
}
