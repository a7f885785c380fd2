package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/measure"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
)

// layoutModel prepares one model for the executors of this backend.
func (o *Options) layoutModel(ctx context.Context, m *repo.Model, library *ort.Runtime) (*device.Model, error) {
	switch {
	case o.Emulate > 0 || m.Platform == repo.PlatformEmulated:
		return o.layoutEmulated(ctx, m, library)
	case library == nil && !o.GPUs:
		return nil, fmt.Errorf("platform %s: %w", m.Platform, ort.ErrMissing)
	}

	d, err := device.NewModel(m, 0, SlotBytesMax)
	if err != nil {
		return nil, err
	}

	// A stored profile with fewer batch sizes would leave the largest without a time: measure again.
	if p, ok := m.Profile(o.kind); ok && len(p.TableNS) >= d.BatchMax {
		d.Profile, err = profile.New(p.TableNS)
	}

	return d, err
}

// hostKind returns the name under which profiles of this host's first GPU, or of ONNX Runtime here, are stored, and a
// description. Executors of several threads, and lanes, have names of their own.
func (o *Options) hostKind(library *ort.Runtime) (kind, about string, err error) {
	if !o.GPUs {
		kind, about = measure.HostKind(library.Version(), o.Threads), measure.Describe(library.Version(), o.Threads)
	} else if kind, about, err = layered.Kind(0); errors.Is(err, cuda.ErrNotSupported) {
		err = fmt.Errorf("gpu: this host has no GPU and driver that this binary can use: %w; without -gpu models run on the processor", err)
	}
	if o.Lanes > 1 {
		about = fmt.Sprintf("%s, one of %d lanes while all run", about, o.Lanes)
	}
	return device.LaneKind(kind, o.Lanes), about, err
}

// layoutEmulated takes a model's own line, a stored profile, or else this host's estimate.
func (o *Options) layoutEmulated(ctx context.Context, m *repo.Model, library *ort.Runtime) (*device.Model, error) {
	p, err := emu.Profile(m)
	if err == nil {
		if p, err = emu.LaneProfile(p, m, o.Lanes); err != nil {
			return nil, err
		}
		d, err := device.NewModel(m, p.Max(), SlotBytesMax)
		if err == nil {
			d.Profile = p
		}
		return d, err
	}

	// A real model without a profile is emulated with this host's estimate.
	if library == nil {
		return nil, fmt.Errorf("%w (%w)", err, ort.ErrMissing)
	}

	d, err := device.NewModel(m, 0, SlotBytesMax)
	if err != nil {
		return nil, err
	}

	_, err = loaded(d, library, func(e device.Executor, s *device.Slot) (err error) {
		d.Profile, err = o.measureQuick(ctx, measure.On(e), d, s)
		return err
	})
	if err != nil {
		return nil, err
	}
	d.Profile, err = emu.LaneProfile(d.Profile, m, o.Lanes)
	return d, err
}

// measureProfile returns the model's stored profile if it holds on this host, else a quick measurement.
func (o *Options) measureProfile(ctx context.Context, run measure.Timer, m *device.Model, s *device.Slot) (*profile.Profile, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	// Emulated models take the time that they state: there is nothing to measure.
	if o.Emulate > 0 || m.Source.Platform == repo.PlatformEmulated {
		return m.Profile, nil
	}
	if m.Profile != nil {
		if ok, err := measure.Check(ctx, run, m, s, m.Profile, o.laneSlowdown()); ok || err != nil {
			return m.Profile, err
		}
		o.Logger.Warn("the stored profile does not hold on this host now; measuring again", "model", m.Name, "version", m.Version)
	}

	return o.measureQuick(ctx, run, m, s)
}

// quickTries is how often a model is measured that seems too slow for its SLO, as the host may be busy for a moment.
const quickTries = 3

func (o *Options) measureQuick(ctx context.Context, run measure.Timer, m *device.Model, s *device.Slot) (*profile.Profile, error) {
	// One measurement decides, unless the model seems too slow.
	r, err := measure.Quick(ctx, run, m, s)

	for try := 1; err == nil && try < quickTries && m.Source.SLO > 0 && r.Table[0] > m.Source.SLO; try++ {
		r, err = measure.Quick(ctx, run, m, s)
	}
	if err != nil {
		return nil, err
	}
	// Other lanes do not run now. While they do, a batch takes at most as long as if all took turns.
	for b := range r.Table {
		r.Table[b] *= time.Duration(o.laneSlowdown())
	}
	o.Logger.Info("model measured; \"downbeat profile\" measures it better and stores the result", "model", m.Name, "version", m.Version,
		"batches", m.BatchMax, "first", r.Table[0], "largest", r.Table[len(r.Table)-1], "took", r.Elapsed.Round(time.Millisecond))
	return r.Profile()
}
