package backend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
	"downbeat.dev/internal/logtest"
	"downbeat.dev/rdma"
)

const embedConfig = `
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "id" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1, 1 ] } ]
`

// embedding is a model that looks up rows of a table of 8, y = 10·id, and refuses any other index.
func embedding(t *testing.T) *device.Model {
	t.Helper()
	g := onnx.NewBuilder("embed")
	x := g.Input("id", onnx.Int64, onnx.Batched(1))
	table := g.Const(onnx.FloatTensor("table", []float32{0, 10, 20, 30, 40, 50, 60, 70}, 8, 1))
	g.Output("y", g.Node("Gather", []string{table, x}), onnx.Float, onnx.Batched(1, 1))
	graph, err := g.Model(13)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at := filepath.Join(dir, "embed")
	if err := errors.Join(os.MkdirAll(filepath.Join(at, "1"), 0o755), os.WriteFile(filepath.Join(at, "config.pbtxt"), []byte(embedConfig), 0o644),
		os.WriteFile(filepath.Join(at, "1", "model.onnx"), graph.Marshal(), 0o644)); err != nil {
		t.Fatal(err)
	}
	r, err := repo.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := device.NewModel(&r.Models[0], 0, SlotBytesMax)
	if err != nil {
		t.Fatal(err)
	}
	m.Profile, err = profile.New(slices.Repeat([]time.Duration{time.Millisecond}, 8))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestABadRowFailsAlone shows that rows that ONNX Runtime refuses fail alone, wherever in a batch they are, and that
// the others get their own outputs.
func TestABadRowFailsAlone(t *testing.T) {
	library, err := ort.Open(os.Getenv("ORT_LIB"))
	if errors.Is(err, ort.ErrMissing) && os.Getenv("ORT_LIB") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, before := range map[string][]device.Executor{"core": nil, "beside a GPU that takes batches ahead": {picky{mustEmu(t)}}} {
		t.Run(name, func(t *testing.T) { checkBadRows(t, append(before, library.Executor())) })
	}
}

// checkBadRows runs batches with bad rows on a GPU of these executors.
func checkBadRows(t *testing.T, executors []device.Executor) {
	var lines logtest.Buffer
	front := newStub(t, rdma.Config{})
	node, err := rdma.Open(rdma.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	b, err := New(Config{Name: "test", Models: []*device.Model{embedding(t)}, Node: node, Logger: slog.New(slog.NewTextHandler(&lines, nil)),
		GPUs: []GPU{{Name: "cpu 0", Executors: executors, Core: -1}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	scheduler := &schedule{t: t, dones: map[uint64]wire.Done{}, at: map[uint64]time.Time{}}
	b.attach(scheduler)
	events{b}.Link(true, nil)
	events{b}.Peers([]wire.Peer{{Frontend: 1, DataAddr: front.node.Addr()}})

	const bad = 12345678
	for batch, ids := range [][]uint64{{1, 2, 3}, {bad, 1, 2, 3, 4, 5, 6, 7}, {7, 6, 5, bad, 3, 2, 1, 0}, {1, bad, bad, 2, 3, bad, 4}, {5, bad}, {1, 2, 3, 4, bad}, {bad, bad, bad}} {
		e := wire.Execute{Batch: uint64(batch), Latest: int64(20 * time.Second)}
		request := func(i int) uint64 { return uint64(batch*100 + i) }
		for i, id := range ids {
			e.Items = append(e.Items, wire.Item{Frontend: 1, ID: request(i), Budget: us(25 * time.Second), Input: front.offer(binary.LittleEndian.AppendUint64(nil, id))})
		}
		events{b}.Execute([]wire.Execute{e})
		var failures []wire.ItemFailure
		if len(slices.Compact(slices.Clone(ids))) == 1 { // as if the GPU were failing: its scheduler tries another one, or tells the frontend
			for i := range ids {
				failures = append(failures, wire.ItemFailure{Index: uint32(i), Reason: model.ExecutionFailed, Untold: true})
			}
			ids = nil
		}
		for i, id := range ids {
			a := front.wait(request(i))
			if id == bad {
				failures = append(failures, wire.ItemFailure{Index: uint32(i), Reason: model.ExecutionFailed})
				if a.Reason != model.ExecutionFailed {
					t.Errorf("batch %v: row %d: %v, want %v", ids, i, a.Reason, model.ExecutionFailed)
				}
				continue
			}
			if got := fmt.Sprint(float(a.output)); a.Reason != 0 || got != fmt.Sprint(10*id) {
				t.Errorf("batch %v: row %d: reason %v, output %s, want %d", ids, i, a.Reason, got, 10*id)
			}
		}
		if d, _ := scheduler.wait(uint64(batch)); !slices.Equal(d.Failures, failures) {
			t.Errorf("batch %v: Done says %v, want %v", ids, d.Failures, failures)
		}
	}
	if n := strings.Count(lines.String(), "single requests fail in batches that succeed"); n != 1 || !strings.Contains(lines.String(), front.node.Addr()) {
		t.Errorf("whose rows are bad was said %d times, want once, with the address:\n%s", n, lines.String())
	}
	if !b.Ready() {
		t.Error("bad rows make the backend unready")
	}
}

func float(b []byte) float32 {
	if len(b) != 4 {
		return float32(math.NaN())
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}
