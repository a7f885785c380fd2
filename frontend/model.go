package frontend

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"downbeat.dev/core/model"
)

// Model is a model as the scheduler last announced it. It is read-only and shared.
type Model struct {
	ModelInfo
	InputBytes  int // of one request; -1 if an input is BYTES, which varies in size, or requests state shapes
	OutputBytes int // of one request; -1 if an output is BYTES, or requests state shapes

	class     string // the shape class of the version in Version; empty: it is not a class
	announced string // the announced version
	shaped    bool   // requests state shapes

	// Bytes that a backend takes and returns, including the tensors of a sequence, whose inputs hidden describes.
	fullInput, fullOutput int
	hidden                []model.Tensor

	lostAt int64 // 0: announced in this session; otherwise when a session began without it, on the client's clock
	idleAt int64 // 0: ready; otherwise since when it is not, on the client's clock
}

// Deadline returns the model's SLO: the default budget of a request.
func (m *Model) Deadline() time.Duration { return time.Duration(m.SLO) }

// payloadBytes returns the size of one request's tensors; −1 if it varies.
func payloadBytes(tensors []model.Tensor) (int, error) {
	l, err := model.NewLayout(tensors)
	if l.Varies {
		return -1, err
	}
	return l.Bytes, err
}

type modelName struct{ name, version string }

// keepTensors keeps the tensors of a version that is no longer served, whose announcement has only the reason. Its
// requests move to the newest version if that has the same tensors.
func (m *Model) keepTensors(before *modelTable) {
	if before == nil || len(m.Inputs) > 0 || len(m.Outputs) > 0 {
		return
	}
	if old := before.byName[modelName{m.Name, m.announced}]; old != nil && old.Sequence == nil {
		m.Inputs, m.Outputs, m.Optional = old.Inputs, old.Outputs, old.Optional
	}
}

// measurePayloads computes the sizes of a request's input and output.
func (m *Model) measurePayloads() error {
	// With shape classes, only the classes have requests.
	if m.shaped = m.HasClasses(); m.shaped {
		m.fullInput, m.fullOutput, m.InputBytes, m.OutputBytes = -1, -1, -1, -1
		return nil
	}

	var err, err2 error
	m.fullInput, err = payloadBytes(m.Inputs)
	m.fullOutput, err2 = payloadBytes(m.Outputs)
	m.hideSequence()
	return cmp.Or(err, err2)
}

// hideSequence removes a sequence's tensors from those that callers see.
func (m *Model) hideSequence() {
	in, out := m.Sequence.Hidden()
	m.Inputs, m.hidden, m.Outputs = m.Inputs[:len(m.Inputs)-in], m.Inputs[len(m.Inputs)-in:], m.Outputs[:len(m.Outputs)-out]

	// The whole list was checked, so its prefix is valid as well.
	m.InputBytes, _ = payloadBytes(m.Inputs)
	m.OutputBytes, _ = payloadBytes(m.Outputs)
}

// models holds the announced models. The link's goroutine writes it, any goroutine reads it.
type models struct{ table atomic.Pointer[modelTable] }

// Models returns all announced models, by name, then version, without shape classes.
func (c *Client) Models() []*Model {
	t := c.models.table.Load()
	if t == nil {
		return nil
	}
	all := make([]*Model, 0, len(t.all))
	for _, m := range t.all {
		if m.class == "" && !c.isForgotten(m) {
			all = append(all, m)
		}
	}
	return all
}

// withdrawnAfter is how long an unserved model counts against Ready.
const withdrawnAfter = time.Minute

// Ready reports whether the scheduler is connected and every announced model has a version that a backend serves. At
// least one model must be announced. A model that has not been served for a minute counts as withdrawn, so an upgrade
// that ends with the old version's last backend leaves the frontend ready. So does a model that a backend cannot
// serve (Reason). If backends load models only on command, none needs to be loaded.
func (c *Client) Ready() bool { return c.Connected() && allReady(c.Models(), c.now()) }

func allReady(models []*Model, now int64) bool {
	ready, awaited := map[string]bool{}, map[string]bool{}
	unloaded := false
	for _, m := range models {
		// One ready version makes the name ready.
		if m.Ready {
			ready[m.Name] = true
		} else if m.Reason == model.Unloaded {
			unloaded = true
		} else if m.Reason == "" && now-m.idleAt < int64(withdrawnAfter) {
			awaited[m.Name] = true
		}
	}
	for name := range awaited {
		if !ready[name] {
			return false
		}
	}

	return len(ready) > 0 || unloaded
}

// Model returns a model; an empty version means the newest ready one. Nil: not announced.
func (c *Client) Model(name, version string) *Model {
	if t := c.models.table.Load(); t != nil {
		if m := t.byName[modelName{name, version}]; m != nil && !c.isForgotten(m) {
			return m
		}
	}
	return nil
}

// refuseUnknown returns the outcome of a request for a model that is not announced.
func (c *Client) refuseUnknown(r *Request) error {
	if !c.Connected() {
		return &OutcomeError{Reason: model.NoBackend, Model: r.Model, Local: true, Cause: errNoScheduler}
	}
	return &OutcomeError{Reason: model.UnknownModel, Model: r.Model, Local: true, Cause: c.whyUnknown(r)}
}

// whyUnknown returns which part of a request's model is not announced.
func (c *Client) whyUnknown(r *Request) error {
	if m := c.Model(r.Model, ""); m != nil {
		return fmt.Errorf("version %q is not announced; the newest is %q", r.Version, m.Version)
	}
	return fmt.Errorf("not among the %d models that are announced", len(c.Models()))
}

// isRefused reports whether the announcement has only the reason why a model is not served. A family has no other version
// that could take its requests, though its tensors may be known from before.
func (m *Model) isRefused() bool { return m.Reason != "" && (m.announced == "" || len(m.Inputs) == 0) }

// refusal returns the outcome of requests for such a model.
func (m *Model) refusal() error {
	why := model.NoBackend
	if strings.HasPrefix(m.Reason, model.BelowFloor) {
		why = model.FloorTooHigh
	}
	return &OutcomeError{Reason: why, Model: m.Name, Local: true, Cause: errors.New(m.Reason)}
}

// serviceFor returns the id that a request with an accuracy floor sends to the scheduler.
func (m *Model) serviceFor(floor float64) (id uint32, err error) {
	best := m.Accuracy

	// Without a floor the model's own id will do; a family has an id for each floor that makes a difference.
	switch {
	case floor == 0:
		return m.ID, nil
	case !(floor > 0 && floor <= 1):
		return 0, fmt.Errorf("%w: model %q: accuracy floor %v: must be from 0 to 1", ErrInvalid, m.Name, floor)
	case !m.IsFamily() && floor <= best:
		return m.ID, nil
	}

	// The lowest sufficient floor leaves the scheduler the most variants.
	for _, f := range m.Floors {
		if floor <= f.Accuracy {
			return f.ID, nil
		}
		best = f.Accuracy
	}

	cause := fmt.Errorf("accuracy floor %v: the best that is served has %v", floor, best)
	if best == 0 {
		cause = fmt.Errorf("accuracy floor %v: the model states no accuracy", floor)
	}
	return 0, &OutcomeError{Reason: model.FloorTooHigh, Model: m.Name, Local: true, Cause: cause}
}

// answeredBy returns the model that answered a call.
func (c *Client) answeredBy(p *call) *Model {
	if p.answer > 0 {
		if m := c.models.table.Load().byID[p.answer-1]; m != nil {
			return m
		}
	}
	return p.model
}

// isForgotten reports whether the time has passed for which a call waits for a model that is no longer announced.
func (c *Client) isForgotten(m *Model) bool {
	return m.lostAt > 0 && c.now()-m.lostAt > int64(c.o.Reconnect)
}
