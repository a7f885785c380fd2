package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"text/tabwriter"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
)

// Options are the options of "downbeat bench gpu".
type Options struct {
	Check    bool // compare with ONNX Runtime instead of measuring
	Small    bool // with Check: operators and small networks only
	Emulated bool // run on the emulated device, to try the command; its times mean nothing
	JSON     bool
	Library  string   // ONNX Runtime
	Models   string   // folder whose *.onnx files are also checked; "" for none
	Python   string   // an interpreter with torch; "" for none
	Graphs   []string // of Graphs; all if empty
	Batches  []int
	Rounds   int
	Seed     uint64

	Precisions []string // fp32, fp16, bf16; all if empty
	Match      string   // with Check: a regular expression for cases' names
	Tune       bool     // see executor.Config
	Libraries  string   // likewise
	Layers     bool     // also the time of each layer, in the JSON
	found      string   // the libraries
	Lines      string   // a file to which each row is appended as a line of JSON
}

// parsePrecisions parses o.Precisions.
func (o Options) parsePrecisions() (all []layers.Precision, err error) {
	if len(o.Precisions) == 0 {
		return []layers.Precision{layers.FP32, layers.FP16, layers.BF16}, nil
	}
	for _, name := range o.Precisions {
		p, err := layers.ParsePrecision(name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// report is the whole result.
type report struct {
	Device     cuda.Properties `json:"device"`
	GPUs       []cuda.GPU      `json:"gpus,omitempty"` // driver and clocks
	Rates      Rates           `json:"rates"`
	Libraries  string          `json:"libraries"` // cuBLASLt and cuDNN as found, "" for neither
	Ceilings   *Ceilings       `json:"ceilings,omitempty"`
	Rows       []Row           `json:"rows,omitempty"`
	Throughput []Throughput    `json:"throughput,omitempty"`
	Checks     []Checked       `json:"checks,omitempty"`
}

// Command runs the measurement or the check and writes the result to w. Without a GPU the error matches
// cuda.ErrNotSupported.
func Command(ctx context.Context, o Options, w io.Writer) (err error) {
	dev, err := o.openDevice()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()

	if o.Libraries != "none" {
		l, err := dev.OpenLibraries(o.Libraries)
		if err != nil {
			return err
		}
		defer l.Close()
		o.found = l.Names()
	}

	r := report{Device: dev.Properties(), Rates: H200, Libraries: o.found}
	if r.GPUs, err = cuda.Inventory(); err != nil && !errors.Is(err, cuda.ErrNotSupported) {
		return err
	}

	if o.Check {
		err = o.checkAll(ctx, dev, &r)
	} else {
		err = o.measureAll(ctx, dev, &r)
	}

	// Write the result even after an error: measured rows cost minutes.
	if o.JSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return errors.Join(err, e.Encode(r))
	}
	return errors.Join(err, r.writeTable(w))
}

func (o Options) openDevice() (*cuda.Device, error) {
	if o.Emulated {
		return Emulated()
	}
	d, err := cuda.Open(cuda.Config{PinnedBytesMax: 4 << 30})
	if err != nil {
		return nil, fmt.Errorf("%w (downbeat bench gpu needs a GPU and a binary built with the tag cuda; -emulated tries the command without one)", err)
	}
	return d, nil
}

func (o Options) checkAll(ctx context.Context, dev *cuda.Device, r *report) error {
	// Full-size networks are too large for the emulated device, which computes in Go.
	cases := append(Operators(), Networks()...)
	if !o.Emulated && !o.Small {
		cases = append(cases, FullNetworks()...)
	}

	if o.Models != "" {
		more, err := fileCases(o.Models)
		if err != nil {
			return err
		}
		cases = append(cases, more...)
	}

	match, err := regexp.Compile(o.Match)
	if err != nil {
		return fmt.Errorf("cases to match: %w", err)
	}

	cases = slices.DeleteFunc(cases, func(k Case) bool { return !match.MatchString(k.Name) })

	c := CheckConfig{Library: o.Library, Seed: o.Seed, Capture: true, Timeout: time.Minute, Tune: o.Tune, Libraries: o.Libraries}
	if c.Precisions, err = o.parsePrecisions(); err != nil {
		return err
	}
	return Check(ctx, dev, c, cases, func(k Checked) { r.Checks = append(r.Checks, k) })
}

// fileCases makes a case of every ONNX file below a folder.
func fileCases(folder string) (all []Case, err error) {
	err = filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".onnx" {
			return err
		}
		m, err := onnx.Read(path)
		if err != nil {
			return err
		}

		rel, _ := filepath.Rel(folder, path)
		all = append(all, Case{Name: rel, Model: m, Batches: []int{4, 16}, IntMax: 256}) // the norm of a row of three classes is not meaningful
		return nil
	})
	return all, err
}

func (o Options) measureAll(ctx context.Context, dev *cuda.Device, r *report) (err error) {
	c := Config{Batches: o.Batches, Rounds: o.Rounds, Rates: H200, Timeout: time.Minute, Tune: o.Tune, Libraries: o.Libraries, Layers: o.Layers}

	if o.Python != "" {
		var stop func()
		c.Torch, stop = Torch(o.Python)
		defer stop()
	}

	// Write lines as rows come, so that an interrupted run keeps its measurements.
	lines, err := o.openLines()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lines.Close()) }()
	out := json.NewEncoder(lines)

	if r.Ceilings, err = measureCeilings(ctx, dev); err != nil {
		return err
	}

	err = errors.Join(out.Encode(r.Ceilings), o.eachGraph(ctx, dev, c, func(row Row) {
		r.Rows = append(r.Rows, row)
		_ = out.Encode(row)
	}))

	if o.Emulated || len(o.Graphs) > 0 && !slices.Contains(o.Graphs, pipelineGraph) || ctx.Err() != nil {
		return err
	}

	precisions, _ := o.parsePrecisions()
	c.Precision = precisions[len(precisions)-1]
	size := int64(224)
	if slices.Contains(o.Graphs, trial) {
		size = 32
	}

	t, perr := Pipelined(ctx, dev, c, ResNet50Bytes(size, 1), slices.Max(o.Batches))
	if perr == nil {
		r.Throughput = append(r.Throughput, t)
		perr = out.Encode(t)
	}
	return errors.Join(err, perr)
}

// pipelineGraph is the name, among the graphs, of the measurement of overlapping batches.
const pipelineGraph = "resnet50-bytes"

// openLines opens the file of lines; without a file name, output is discarded.
func (o Options) openLines() (io.WriteCloser, error) {
	if o.Lines == "" {
		return discard{io.Discard}, nil
	}
	return os.OpenFile(o.Lines, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

type discard struct{ io.Writer }

func (discard) Close() error { return nil }

// eachGraph measures every graph in every precision. It goes on after a graph fails.
func (o Options) eachGraph(ctx context.Context, dev *cuda.Device, c Config, report func(Row)) error {
	names := o.Graphs
	if len(names) == 0 {
		names = slices.DeleteFunc(slices.Sorted(maps.Keys(Graphs)), func(name string) bool { return name == trial })
	}

	precisions, err := o.parsePrecisions()
	if err != nil {
		return err
	}

	var errs []error
	for _, name := range names {
		build := Graphs[name]
		if name == pipelineGraph {
			continue
		}
		if build == nil {
			return fmt.Errorf("graph %q: want resnet50, mobilenet, bert-base or %s", name, pipelineGraph)
		}

		m := build()
		for _, c.Precision = range precisions {
			err := Run(ctx, dev, c, name, m, report)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s in %v: %w", name, c.Precision, err))
			}

			// After an error of the device, or the end of ctx, no further row would mean anything.
			if dev.Err() != nil || ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

func (r report) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "device %s, %d MiB, compute %d.%d, driver %d\n", r.Device.Name, r.Device.MemoryBytes>>20, r.Device.ComputeMajor, r.Device.ComputeMinor, r.Device.DriverVersion)
	if r.Libraries != "" {
		fmt.Fprintf(w, "libraries %s\n", r.Libraries)
	}

	if c := r.Ceilings; c != nil {
		fmt.Fprintf(w, "device copies %.0f GB/s, copies in %.1f GB/s pinned and %.1f pageable, out %.1f\n", c.Device, c.In, c.InPageable, c.Out)
	}

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
		fmt.Fprintf(t, "pipeline of %d\tpinned %v\t%.0f images/s\tcopy-in bound %.0f\tcompute bound %.0f\tshare %.2f\tone at a time %.0f\tover pageable %.2f\t\n", x.Batch, x.Pinned, x.PerSecond, x.CopyIn, x.Compute, x.Share, x.Alone, x.Ratio)
	}

	passed := 0
	for _, x := range r.Checks {
		if x.Passed {
			passed++
			continue
		}
		fmt.Fprintf(t, "FAILED\t%s\t%s\tbatch %d\tby layer %v\t%s\t\n", x.Case, x.Precision, x.Batch, x.ByLayer, x.Reason)
	}

	if len(r.Checks) > 0 {
		fmt.Fprintf(t, "%d of %d checks passed\t\n", passed, len(r.Checks))
	}
	return t.Flush()
}
