package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/rdma"
)

// Service is a backend that is connected to its scheduler.
type Service struct {
	*Backend
	node  *rdma.Node
	leave func() error // ends the session with the scheduler
}

// patientWait is how long a patient backend waits for its scheduler before Start continues without it.
const patientWait = time.Second

// Start loads the repository, measures models without a profile for this kind of host, and connects. It waits for the
// scheduler until ctx ends (ten seconds without a deadline). The caller must Stop the service.
func Start(ctx context.Context, o Options) (*Service, error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	seen, err := repo.Scan(o.modelDirectories()) // before anything is read, so that changes meanwhile are noticed
	if err != nil {
		return nil, err
	}

	if o.commanded, err = openCommanded(o.State, o.Name); err != nil {
		return nil, err
	}
	if o.Control == ControlExplicit {
		o.Load, o.without = o.commanded.atStart(o.Load)
	}
	c, err := o.assembleConfig(ctx)
	if err != nil {
		return nil, err
	}

	data := o.Data
	data.Token, data.Logger = cmp.Or(data.Token, o.Token), cmp.Or(data.Logger, o.Logger)
	data.PoolBytes = max(1<<30, 4*int64(device.SlotBytes(c.Models))*slotsEach*int64(len(c.GPUs)))
	if c.Node, err = rdma.Open(data); err != nil {
		return nil, errors.Join(fmt.Errorf("open data plane: %w", err), closeGPUs(c.GPUs))
	}

	overridden := slices.Sorted(maps.Keys(c.repository.overrides)) // later commands change it

	s := &Service{node: c.Node}
	if s.Backend, err = New(c); err != nil {
		return nil, errors.Join(err, c.Node.Close())
	}
	if o.Patient {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, patientWait)
		defer end()
	}
	if s.leave, err = s.Connect(ctx, Connection{Scheduler: o.Scheduler, Token: o.Token, TLS: o.TLS, Patient: o.Patient, Logger: o.Logger}); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to scheduler: %w", err), s.Backend.Close(), c.Node.Close())
	}

	// Polls and reloads come after the hello: they report changes to it.
	if o.Control == ControlPoll {
		s.wait.Add(1)
		go s.pollRepository(s.peers.ctx, seen)
	}
	if len(overridden) > 0 {
		s.wait.Add(1)
		go s.reloadOverridden(overridden)
	}

	return s, nil
}

// Stop finishes the accepted requests, until ctx ends at the latest, then disconnects and frees everything. If a GPU
// hangs it returns ctx's error and leaves the GPU's goroutine behind.
func (s *Service) Stop(ctx context.Context) error {
	// Drain before the link closes, so that results of accepted batches still reach the scheduler.
	drained := s.Drain(ctx)

	// The scheduler learns of the end before the GPUs are freed.
	err := s.leave()
	s.logStats()

	// Close would wait for the hanging GPU, which may never answer.
	if drained != nil && s.anyHangs() {
		return errors.Join(drained, err)
	}

	return errors.Join(drained, err, s.Backend.Close(), s.node.Close())
}

// logStats logs each GPU's counts.
func (b *Backend) logStats() {
	for _, g := range b.Stats() {
		args := []any{"gpu", g.GPU, "batches", g.Batches, "rows", g.Rows, "busy", g.Busy.Round(time.Millisecond), "unsent", g.Unsent}
		for r, n := range g.Failed {
			if n > 0 {
				args = append(args, model.Reason(r).String(), n)
			}
		}
		b.log.Info("served", args...)
	}
}

func (b *Backend) anyHangs() bool {
	for _, g := range b.gpus {
		if g.hung.Load() || g.stuck.Load() > 0 {
			return true
		}
	}

	return false
}
