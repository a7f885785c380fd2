package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"downbeat.dev/cuda"
)

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
