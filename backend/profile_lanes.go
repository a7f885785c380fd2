package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/measure"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/repo"
)

// fillDefaults checks the numbers of lanes.
func (o *ProfileOptions) fillDefaults() error {
	o.Threads = cmp.Or(o.Threads, 1)
	if len(o.Lanes) == 0 {
		o.Lanes = []int{1}
	}

	o.Lanes = slices.Sorted(slices.Values(o.Lanes))
	most := o.Lanes[len(o.Lanes)-1]
	switch {
	case most > 1 && o.Lanes[0] != 1:
		return fmt.Errorf("lanes: %v: want 1 among them, with which the others are compared", o.Lanes)
	case len(slices.Compact(slices.Clone(o.Lanes))) < len(o.Lanes):
		return fmt.Errorf("lanes: %v: one is named twice", o.Lanes)
	case o.Core >= 0 && (most > 1 || o.Threads > 1):
		return fmt.Errorf("core: %d: not together with threads or lanes above 1, which need more than one core", o.Core)
	}

	for _, lanes := range o.Lanes {
		host := o.host(lanes)
		if err := host.checkLanes(); err != nil {
			return err
		}
	}
	return nil
}

// host returns the options of a backend with the measured executors.
func (o *ProfileOptions) host(lanes int) *Options {
	return &Options{GPUs: o.GPU, Threads: o.Threads, Lanes: lanes}
}

// openMeasured opens the lanes of the first GPU, or of ONNX Runtime.
func openMeasured(host *Options, library *ort.Runtime) (all []device.Executor, err error) {
	if !host.GPUs {
		for range host.Lanes {
			all = append(all, library.ExecutorOf(host.Threads/host.Lanes))
		}
		return all, nil
	}

	opened, err := layered.OpenLanes(0, layered.Config{}, host.Lanes)
	if err != nil {
		return nil, err
	}
	for _, e := range opened {
		all = append(all, e)
	}
	return all, nil
}

// measureAmong measures the first lane while the others run batches of the same size.
func measureAmong(ctx context.Context, m *device.Model, all []measure.Lane, o measure.Options) (*measure.Result, error) {
	first := measure.On(all[0])
	if len(all) == 1 {
		return measure.Run(ctx, first, m, all[0].Slots[0], o)
	}

	beside, err := measure.NewBeside(m, all[1:], o.Seed)
	if err != nil {
		return nil, err
	}
	defer beside.End()
	return measure.Run(ctx, beside.Among(first), m, all[0].Slots[0], o)
}

// laneGains are the gains of each measured model, by number of lanes.
type laneGains struct {
	names []string
	gains [][]float64
}

func (g *laneGains) add(m *repo.Model, splits []measure.Split) {
	var gains []float64
	for _, s := range splits {
		gains = append(gains, s.Gain(splits[0], m.SLO))
	}
	g.names, g.gains = append(g.names, m.Name), append(g.gains, gains)
}

// print writes which number of lanes serves all models best: all of them run on each lane.
func (g *laneGains) print(w io.Writer, lanes []int) error {
	if len(g.names) < 2 {
		return nil
	}

	_, err := fmt.Fprintln(w)
	errs := []error{err}
	splits, mean := make([]measure.Split, len(lanes)), make([]float64, len(lanes))
	for i, n := range lanes {
		splits[i].Lanes = n

		// The geometric mean, because gains are ratios.
		worst := 0
		for k := range g.names {
			mean[i] += math.Log(g.gains[k][i]) / float64(len(g.names))
			if g.gains[k][i] < g.gains[worst][i] {
				worst = k
			}
		}

		if mean[i] = math.Exp(mean[i]); n > 1 {
			_, err := fmt.Fprintf(w, "lanes %d: %.2f times lanes 1 in the geometric mean of all %d models, least %.2f with %s\n",
				n, mean[i], len(g.names), g.gains[worst][i], g.names[worst])
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, measure.PrintChoice(w, splits, mean, " for a backend of all of them"))...)
}
