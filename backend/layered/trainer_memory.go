package layered

import (
	"strings"

	"downbeat.dev/backend/train"
	"downbeat.dev/cuda"
)

// stepMemory holds the tensors of a training step. The device has all of them; pinned memory has those that the host
// reads or writes, at the same offsets.
type stepMemory struct {
	device *cuda.Memory
	slab   *cuda.Slab
	host   hostTensors

	image, target, rate, loss place
	vectors                   [2][3]place // weights and the two moments: current and next, exchanged after every step
}

// hostTensors are views of the slab.
type hostTensors struct {
	image                       []byte
	target, rate, loss, weights []float32
}

// place is a tensor's offset and length, in bytes.
type place struct{ at, bytes int64 }

// placeAlign is the alignment of tensors, as if each had its own allocation.
const placeAlign = 256

// vectorNames are the names of the vectors in a training graph.
var vectorNames = [3]string{"weights", "moment1", "moment2"}

func allocStep(dev *cuda.Device, net train.Net, batch, weights int) (m stepMemory, err error) {
	var end int64
	put := func(bytes int64) place {
		at := end
		end += (bytes + placeAlign - 1) &^ (placeAlign - 1)
		return place{at, bytes}
	}

	m.image = put(int64(batch) * net.H * net.W * 3)
	m.target = put(int64(batch*net.TargetLen()) * 4)
	m.rate, m.loss = put(4), put(4)

	// The host reads one vector of weights, whichever set it comes from: its place is that of the first one.
	m.vectors[0][0] = put(int64(weights) * 4)
	hostBytes := end
	for i := range m.vectors {
		for j := range m.vectors[i] {
			if m.vectors[i][j].bytes == 0 {
				m.vectors[i][j] = put(int64(weights) * 4)
			}
		}
	}

	if m.device, err = dev.Alloc(end); err != nil {
		return m, err
	}
	if m.slab, err = dev.AllocHost(hostBytes); err != nil {
		m.device.Free()
		return stepMemory{}, err
	}

	m.host = hostTensors{image: m.bytesOf(m.image), target: floatsOf(m.bytesOf(m.target)), rate: floatsOf(m.bytesOf(m.rate)),
		loss: floatsOf(m.bytesOf(m.loss)), weights: floatsOf(m.bytesOf(m.vectors[0][0]))}
	return m, nil
}

// bytesOf returns a tensor's bytes in the slab.
func (m *stepMemory) bytesOf(p place) []byte { return m.slab.Bytes()[p.at : p.at+p.bytes] }

// addressOf returns the address of a tensor of the graph by its name; now is the current set of vectors.
func (m *stepMemory) addressOf(name string, now int) cuda.Address {
	p := map[string]place{"image": m.image, "target": m.target, "rate": m.rate, "loss": m.loss}[name]
	set := now
	old, isNew := strings.CutSuffix(name, ".new")
	if isNew {
		set = 1 - now
	}

	for i, vector := range vectorNames {
		if vector == old {
			p = m.vectors[set][i]
		}
	}
	return m.device.Address() + cuda.Address(p.at)
}

// copyBatch copies a step's batch and rate to the device.
func (m *stepMemory) copyBatch(s *cuda.Submission, st *cuda.Stream) {
	for _, p := range []place{m.image, m.target, m.rate} {
		s.CopyIn(st, m.device.Address()+cuda.Address(p.at), m.bytesOf(p))
	}
}

// copyWeights copies the host's weights to a set, with moments of zero: those of other weights say nothing about these.
func (m *stepMemory) copyWeights(s *cuda.Submission, st *cuda.Stream, set int) {
	for i, p := range m.vectors[set] {
		to := m.device.Address() + cuda.Address(p.at)
		if i == 0 {
			s.CopyIn(st, to, m.bytesOf(m.vectors[0][0]))
		} else {
			s.Fill(st, to, 0, p.bytes)
		}
	}
}

// copyResults copies the loss, and the weights of a set, to the host.
func (m *stepMemory) copyResults(s *cuda.Submission, st *cuda.Stream, set int) {
	s.CopyOut(st, m.bytesOf(m.loss), m.device.Address()+cuda.Address(m.loss.at))
	s.CopyOut(st, m.bytesOf(m.vectors[0][0]), m.device.Address()+cuda.Address(m.vectors[set][0].at))
}

// freeMemory frees the memory of a step on the device and on the host.
func (m *stepMemory) freeMemory() {
	m.slab.Free()
	m.device.Free()
	*m = stepMemory{}
}
