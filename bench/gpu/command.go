package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/cuda"
)

// Options are what "downbeat bench gpu" takes.
type Options struct {
	Check    bool // compare with ONNX Runtime instead of measuring
	Small    bool // with Check: operators and small networks only
	Emulated bool // run on the emulated device: for trying the command, its times mean nothing
	JSON     bool
	Library  string   // ONNX Runtime
	Models   string   // folder whose *.onnx files are checked too; "" for none
	Python   string   // that has torch; "" for none
	Graphs   []string // of Graphs; all if empty
	Batches  []int
	Rounds   int
	Seed     uint64
}

// report is the whole result.
type report struct {
	Device     cuda.Properties `json:"device"`
	GPUs       []cuda.GPU      `json:"gpus,omitempty"` // driver and clocks
	Rates      Rates           `json:"rates"`
	Rows       []Row           `json:"rows,omitempty"`
	Throughput []Throughput    `json:"throughput,omitempty"`
	Checks     []Checked       `json:"checks,omitempty"`
}

// Command runs what o says and writes the result to w. Without a GPU the error matches
// cuda.ErrNotSupported.
func Command(ctx context.Context, o Options, w io.Writer) (err error) {
	dev, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	r := report{Device: dev.Properties(), Rates: H200}
	if r.GPUs, err = cuda.Inventory(); err != nil && !errors.Is(err, cuda.ErrNotSupported) {
		return err
	}
	if o.Check {
		err = o.check(ctx, dev, &r)
	} else {
		err = o.measure(ctx, dev, &r)
	}
	if o.JSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return errors.Join(err, e.Encode(r))
	}
	return errors.Join(err, r.table(w))
}

func (o Options) open() (*cuda.Device, error) {
	if o.Emulated {
		return Emulated()
	}
	d, err := cuda.Open(cuda.Config{PinnedBytesMax: 4 << 30})
	if err != nil {
		return nil, fmt.Errorf("%w (downbeat bench gpu needs a GPU and a binary built with the tag cuda; -emulated tries the command without one)", err)
	}
	return d, nil
}

func (o Options) check(ctx context.Context, dev *cuda.Device, r *report) error {
	cases := append(Operators(), Networks()...)
	if !o.Emulated && !o.Small {
		cases = append(cases, FullNetworks()...)
	}
	if o.Models != "" {
		more, err := files(o.Models)
		if err != nil {
			return err
		}
		cases = append(cases, more...)
	}
	c := CheckConfig{Library: o.Library, Seed: o.Seed, Capture: true, Timeout: time.Minute}
	return Check(ctx, dev, c, cases, func(k Checked) { r.Checks = append(r.Checks, k) })
}

// files makes a case of every ONNX file below a folder.
func files(folder string) (all []Case, err error) {
	err = filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".onnx" {
			return err
		}
		m, err := onnx.Read(path)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(folder, path)
		all = append(all, Case{Name: rel, Model: m, Batches: []int{1, 4}, IntMax: 256})
		return nil
	})
	return all, err
}

func (o Options) measure(ctx context.Context, dev *cuda.Device, r *report) error {
	c := Config{Batches: o.Batches, Rounds: o.Rounds, Rates: H200, Timeout: time.Minute}
	if o.Python != "" {
		c.Torch = Torch(o.Python)
	}
	names := o.Graphs
	if len(names) == 0 {
		for name := range Graphs {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	for _, name := range names {
		build := Graphs[name]
		if build == nil {
			return fmt.Errorf("graph %q: want resnet50, mobilenet or bert-base", name)
		}
		if err := Run(ctx, dev, c, name, build(), func(row Row) { r.Rows = append(r.Rows, row) }); err != nil {
			return err
		}
	}
	if o.Emulated || len(o.Graphs) > 0 {
		return nil
	}
	t, err := Pipelined(ctx, dev, c, ResNet50Bytes(224, 1), slices.Max(o.Batches))
	r.Throughput = append(r.Throughput, t)
	return err
}

func (r report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "device %s, %d MiB, compute %d.%d, driver %d\n", r.Device.Name, r.Device.MemoryBytes>>20, r.Device.ComputeMajor, r.Device.ComputeMinor, r.Device.DriverVersion)
	if len(r.Rows) > 0 {
		fmt.Fprintln(t, "graph\tprecision\tbatch\tours_us\tp99_us\ttorch_us\tratio\tfloor_us\tover floor\tcpu_us\tallocs\t")
	}
	for _, x := range r.Rows {
		torch, ratio := "-", "-"
		if x.TorchUS != nil {
			torch, ratio = fmt.Sprintf("%.1f", *x.TorchUS), fmt.Sprintf("%.2f", *x.Ratio)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%.1f\t%.1f\t%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t\n", x.Graph, x.Precision, x.Batch, x.OursUS, x.P99US, torch, ratio, x.FloorUS, x.Floor, x.CPUUS, x.Allocs)
	}
	for _, x := range r.Throughput {
		fmt.Fprintf(t, "pipeline of %d\tpinned %v\t%.0f images/s\tcopy-in bound %.0f\tcompute bound %.0f\tshare %.2f\tover pageable %.2f\t\n", x.Batch, x.Pinned, x.PerSecond, x.CopyIn, x.Compute, x.Share, x.Ratio)
	}
	passed := 0
	for _, x := range r.Checks {
		if x.Passed {
			passed++
			continue
		}
		fmt.Fprintf(t, "FAILED\t%s\tbatch %d\tby layer %v\t%s\t\n", x.Case, x.Batch, x.ByLayer, x.Reason)
	}
	if len(r.Checks) > 0 {
		fmt.Fprintf(t, "%d of %d checks passed\t\n", passed, len(r.Checks))
	}
	return t.Flush()
}
