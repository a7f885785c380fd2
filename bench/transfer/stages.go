package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"downbeat.dev/bench/stage"
	"downbeat.dev/core/engine"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// Stages is the op of results between two models, each on its own backend: held by the first backend and read by the
// second, compared with results that pass through the frontend.
const Stages = "stages"

// stages are two backends with a model each, and a frontend that sends the first model's result to the second.
type stages struct {
	*stage.Stage
	bytes int
	sink  *frontend.Buffer // an input of the second model

	fetches, held, plain []int64 // ns
}

// measureStages runs op Stages over one provider. The reference moves as many bytes.
func (c Config) measureStages(ctx context.Context, bin, provider string) ([]Row, error) {
	s, err := c.openStages(ctx, provider)
	if err != nil {
		return nil, err
	}
	defer s.closeStages()

	c.Peers = 1
	ref, err := startReference(ctx, c, bin, provider)
	if err == nil {
		defer ref.closeReference()
	} else if !errors.Is(err, errNoReference) {
		return nil, err
	}
	op := map[string]string{"tcp": "incast", "shm": "fetch", "local": "fetch", "verbs": "read"}[provider]

	var fetches, held, plain, theirs [][]int64

	for round := range c.Rounds + 1 {
		s.fetches, s.held, s.plain = nil, nil, nil
		for range c.Each {
			if err := errors.Join(s.runHeld(ctx), s.runPlain(ctx)); err != nil {
				return nil, err
			}
		}

		// The reference takes its turn within the round, as with the other ops.
		var got []int64
		if ref != nil {
			if got, err = ref.measureRounds(op, c.Each, nil); err != nil {
				return nil, err
			}
		}
		if round > 0 { // the first is a warm-up: it creates the slots for held results
			fetches, held, plain, theirs = append(fetches, s.fetches), append(held, s.held), append(plain, s.plain), append(theirs, got)
		}
	}

	// Compare the moved input with the reference, and the whole held way with the way through the frontend.
	moved := Row{Provider: provider, Op: "stage input", Bytes: c.Bytes, Peers: 1}
	moved.P50, moved.P99, moved.P999, moved.P9999 = percentilesOf(flatten(fetches))
	if ref != nil {
		moved.Reference = ref.title(op)
		moved.compareWith(fetches, theirs)
	}
	frame := Row{Provider: provider, Op: "two stages", Bytes: c.Bytes, Peers: 1, Reference: "by frontend"}
	frame.P50, frame.P99, frame.P999, frame.P9999 = percentilesOf(flatten(held))
	frame.compareWith(held, plain)
	return []Row{moved, frame}, nil
}

func flatten(rounds [][]int64) (all []int64) {
	for _, r := range rounds {
		all = append(all, r...)
	}

	return all
}

// openStages starts the parts, all with this provider.
func (c Config) openStages(ctx context.Context, provider string) (*stages, error) {
	// Each model has its own backend, so that the result must move.
	s := &stages{Stage: &stage.Stage{}, bytes: c.Bytes}
	model := func(name string, in, out int) map[string]string {
		return map[string]string{name: fmt.Sprintf(`name: %q platform: "emulated" max_batch_size: 1
input [ { name: "x" data_type: TYPE_UINT8 dims: [ %d ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ %d ] } ]
parameters { key: "alpha_ms" value { string_value: "0.1" } } parameters { key: "beta_ms" value { string_value: "0.1" } }
parameters { key: "slo_ms" value { string_value: "10000" } }`, name, in, out)}
	}
	data := func() rdma.Config { return nodeConfig(provider, c.Listen, int64(32*c.Bytes), c.Spin, nil) }

	// Batches do not wait: one frame is under way at a time.
	err := s.OpenScheduler(engine.Options{Prompt: 1})

	for name, texts := range map[string]map[string]string{"make": model("make", 1, c.Bytes), "use": model("use", c.Bytes, 1)} {
		if err == nil {
			if err = s.OpenBackend(texts, 1, data(), s.Addr); err != nil {
				err = fmt.Errorf("backend of %q: %w", name, err)
			}
		}
	}
	if err == nil {
		d := data()
		err = s.OpenFrontend(ctx, frontend.Options{Scheduler: s.Addr, Token: d.Token, Grace: patience,
			Data: frontend.DataPlane{Listen: d.Listen, Providers: d.Providers, PoolBytes: d.PoolBytes}})
	}

	for _, name := range []string{"make", "use"} {
		if err == nil {
			_, err = s.Client.AwaitModel(ctx, name)
		}
	}
	if err == nil {
		s.sink, err = s.Client.Buffer(c.Bytes)
	}
	if err != nil {
		return nil, errors.Join(err, s.closeStages())
	}

	return s, nil
}

func (s *stages) closeStages() error {
	if s.sink != nil {
		s.sink.Free()
		s.sink = nil
	}

	return s.Close()
}

// runHeld makes the first backend hold its result, if it has a slot for that.
func (s *stages) runHeld(ctx context.Context) error {
	for {
		began := time.Now()
		made, err := s.Client.Do(ctx, frontend.Request{Model: "make", Parts: []frontend.Part{{Data: []byte{1}}}, Hold: 1})
		if err != nil {
			return err
		}
		if made.Held == nil { // the slot of the previous frame is still being released
			made.Release()
			continue
		}

		// Release before checking the error: the next frame needs the slot.
		used, err := s.Client.Do(ctx, frontend.Request{Model: "use", Parts: []frontend.Part{{Held: made.Held[0]}}})
		s.held = append(s.held, int64(time.Since(began)))
		made.Release()
		if err != nil {
			return err
		}
		s.fetches = append(s.fetches, int64(used.Stages.Fetch))
		used.Release()
		return nil
	}
}

// runPlain brings the first model's result to the frontend, from where the second backend reads it.
func (s *stages) runPlain(ctx context.Context) error {
	// As in an application, copy the output into a registered buffer, which the second backend reads.
	began := time.Now()
	made, err := s.Client.InferCopy(ctx, "make", []byte{1})
	if err != nil {
		return err
	}
	copy(s.sink.Bytes(), made.Data)
	made.Release()
	used, err := s.Client.Infer(ctx, "use", s.sink)
	if err != nil {
		return err
	}
	s.plain = append(s.plain, int64(time.Since(began)))
	used.Release()
	return nil
}
