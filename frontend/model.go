package frontend

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"downbeat.dev/core/model"
)

// Model is a model that the scheduler serves, as it was last announced. It is read-only and shared.
type Model struct {
	ModelInfo
	InputBytes  int // of one request; -1 where an input is BYTES, whose size varies, or requests have shapes of their own
	OutputBytes int // of one request; -1 where an output is BYTES, or requests have shapes of their own

	class     string // the shape class that it is, of the version that Version says; empty: none
	announced string // the version that it was announced with
	shaped    bool   // requests have shapes of their own

	// What a backend takes and gives: with what a sequence adds, whose inputs hidden describes.
	fullInput, fullOutput int
	hidden                []model.Tensor

	lostAt int64 // 0: announced in this session; else when a session began without it, on the client's clock
	idleAt int64 // 0: ready; else since when it is not, on the client's clock
}

// Deadline is the model's SLO: the budget of a request whose context has no deadline.
func (m *Model) Deadline() time.Duration { return time.Duration(m.SLO) }

// payloadBytes is what the tensors of one request take, −1 if that varies.
func payloadBytes(tensors []model.Tensor) (int, error) {
	l, err := model.NewLayout(tensors)
	if l.Varies {
		return -1, err
	}
	return l.Bytes, err
}

type modelName struct{ name, version string }

// modelTable is what is known of the models; it is replaced as a whole.
type modelTable struct {
	byID   map[uint32]*Model    // as announced since it opened
	byName map[modelName]*Model // version "" is the newest that is ready, or the newest
	all    []*Model             // by name, then version
}

// newModelTable brings a table up to date with an announcement: of what changed, or the first one of
// a session. What was known before a session and is not announced in it is kept as lost: a scheduler
// that restarts hears of its backends' models one by one. An id without a name says that its model is
// forgotten; another one may have the id later.
func newModelTable(infos []model.Info, before *modelTable, now int64, first bool) (*modelTable, []error) {
	t := &modelTable{byName: make(map[modelName]*Model, 2*len(infos)), byID: make(map[uint32]*Model, len(infos))}

	gone := map[uint32]bool{}
	var bad []error
	for i := len(infos) - 1; i >= 0; i-- { // of two about one model, the later holds
		m := &Model{ModelInfo: infos[i]}

		if m.Name == "" {
			gone[m.ID] = !first // the ids of other sessions mean nothing now
			continue
		}

		// The catalogue's slices are valid during the call only.
		m.Inputs, m.Outputs = slices.Clone(m.Inputs), slices.Clone(m.Outputs)
		m.announced = m.Version
		m.Version, m.class = model.SplitVersion(m.Version)
		m.keepTensors(before)
		if err := m.measurePayloads(); err != nil {
			bad = append(bad, fmt.Errorf("model %q version %q: %w", m.Name, m.Version, err))
			continue
		}

		if !m.Ready {
			m.idleAt = before.idleSince(m, now)
		}
		t.addModel(m)
	}

	if before != nil {
		t.keepKnown(before, gone, now, first)
	}

	// Sorted by name and version, so that the last one of a name is its newest.
	slices.SortStableFunc(t.all, func(a, b *Model) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), model.CompareVersions(a.Version, b.Version))
	})
	for _, m := range t.all {
		if m.lostAt == 0 {
			t.byID[m.ID] = m
		}
		if m.class != "" {
			continue
		}

		// A name without a version stands for the newest version that is ready, or for the newest where none is.
		if old := t.byName[modelName{m.Name, ""}]; old == nil || m.Ready || !old.Ready {
			t.byName[modelName{m.Name, ""}] = m
		}
	}
	return t, bad
}

// keepTensors gives a version that is served no more, of which only the reason is announced, the tensors that it had: requests that
// were made for it are moved to the newest version if that has the same.
func (m *Model) keepTensors(before *modelTable) {
	if before == nil || len(m.Inputs) > 0 || len(m.Outputs) > 0 {
		return
	}
	if old := before.byName[modelName{m.Name, m.announced}]; old != nil && old.Sequence == nil {
		m.Inputs, m.Outputs, m.Optional = old.Inputs, old.Outputs, old.Optional
	}
}

// measurePayloads finds what a request's input and output take.
func (m *Model) measurePayloads() error {
	// Of a model with shape classes no request is made, but of its classes.
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

// hideSequence takes what a sequence adds out of the tensors that callers see.
func (m *Model) hideSequence() {
	in, out := m.Sequence.Hidden()
	m.Inputs, m.hidden, m.Outputs = m.Inputs[:len(m.Inputs)-in], m.Inputs[len(m.Inputs)-in:], m.Outputs[:len(m.Outputs)-out]

	// What was whole is right in part, too.
	m.InputBytes, _ = payloadBytes(m.Inputs)
	m.OutputBytes, _ = payloadBytes(m.Outputs)
}

// addModel takes a model in, unless a later word about it is there.
func (t *modelTable) addModel(m *Model) {
	key := modelName{m.Name, m.announced}
	if t.byName[key] == nil {
		t.all = append(t.all, m)
		t.byName[key] = m
	}
}

// lostMax is how long a model that is announced no more is kept in the table.
const lostMax = int64(time.Hour)

// keepKnown takes over what the announcement did not name.
func (t *modelTable) keepKnown(before *modelTable, gone map[uint32]bool, now int64, first bool) {
	for _, m := range before.all {
		// A model that was withdrawn is gone; one that went with its scheduler is kept for some time: it may come
		// back.
		if m.lostAt == 0 && gone[m.ID] || m.lostAt > 0 && now-m.lostAt > lostMax {
			continue
		}
		if first {
			// A copy: calls under way hold the model as it was.
			lost := *m
			lost.Ready, lost.idleAt = false, before.idleSince(m, now)
			if lost.lostAt == 0 {
				lost.lostAt = max(now, 1)
			}
			m = &lost
		}
		t.addModel(m)
	}
}

// idleSince is since when a model that is not ready now has not been.
func (t *modelTable) idleSince(m *Model, now int64) int64 {
	if t != nil {
		if old := t.byName[modelName{m.Name, m.announced}]; old != nil && old.idleAt > 0 {
			return old.idleAt
		}
	}
	return max(now, 1)
}

// models holds what was announced. Written by the link's goroutine, read by everyone.
type models struct{ table atomic.Pointer[modelTable] }

// Models returns every model that the scheduler announced, by name, then version. Shape classes are not among them.
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

// withdrawnAfter is when a model that nobody serves any more is no longer waited for.
const withdrawnAfter = time.Minute

// Ready tells whether the scheduler is connected and every model that it announces has a version
// that a backend serves, one at least. A model that none has served for a minute counts as withdrawn:
// an upgrade that ends with the old version's last backend leaves the frontend ready. So does one that a backend said it
// cannot serve (Reason); and where backends load models only when told to, none need be loaded.
func (c *Client) Ready() bool { return c.Connected() && allReady(c.Models(), c.now()) }

func allReady(models []*Model, now int64) bool {
	ready, awaited := map[string]bool{}, map[string]bool{}
	unloaded := false
	for _, m := range models {
		// One version that is ready makes its name ready.
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

// Model finds a model; an empty version means the newest that is ready. Nil: not announced.
func (c *Client) Model(name, version string) *Model {
	if t := c.models.table.Load(); t != nil {
		if m := t.byName[modelName{name, version}]; m != nil && !c.isForgotten(m) {
			return m
		}
	}
	return nil
}

// refuseUnknown is the outcome of a request for a model that is not announced.
func (c *Client) refuseUnknown(r *Request) error {
	if !c.Connected() {
		return &OutcomeError{Reason: model.NoBackend, Model: r.Model, Local: true, Cause: errNoScheduler}
	}
	return &OutcomeError{Reason: model.UnknownModel, Model: r.Model, Local: true, Cause: c.whyUnknown(r)}
}

// whyUnknown tells what of a request's model is not announced.
func (c *Client) whyUnknown(r *Request) error {
	if m := c.Model(r.Model, ""); m != nil {
		return fmt.Errorf("version %q is not announced; the newest is %q", r.Version, m.Version)
	}
	return fmt.Errorf("not among the %d models that are announced", len(c.Models()))
}

// serviceFor returns what a request with a floor on accuracy asks the scheduler for.
func (m *Model) serviceFor(floor float64) (id uint32, err error) {
	best := m.Accuracy

	// No floor needs no service of its own; a family has one for each floor that makes a difference.
	switch {
	case floor == 0:
		return m.ID, nil
	case !(floor > 0 && floor <= 1):
		return 0, fmt.Errorf("%w: model %q: accuracy floor %v: must be from 0 to 1", ErrInvalid, m.Name, floor)
	case !m.IsFamily() && floor <= best:
		return m.ID, nil
	}

	// The lowest floor that is high enough: it leaves the scheduler the most variants.
	for _, f := range m.Floors {
		if floor <= f.Accuracy {
			return f.ID, nil
		}
		best = f.Accuracy
	}

	cause := fmt.Errorf("accuracy floor %v: the best that is served has %v", floor, best)
	if best == 0 {
		cause = fmt.Errorf("accuracy floor %v: the model says no accuracy", floor)
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

// isForgotten tells whether a model that is announced no more has had its time to come back.
func (c *Client) isForgotten(m *Model) bool {
	return m.lostAt > 0 && c.now()-m.lostAt > int64(c.o.Reconnect)
}
