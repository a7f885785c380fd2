package frontend

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"downbeat.dev/core/wire"
)

// Model is a model that the scheduler serves, as it was last announced. It is read-only and shared.
type Model struct {
	wire.ModelInfo
	InputBytes  int // of one request; -1 where an input is BYTES, whose size varies
	OutputBytes int // of one request; -1 where an output is BYTES

	lostAt int64 // 0: announced in this session; else when a session began without it, on the client's clock
	idleAt int64 // 0: ready; else since when it is not, on the client's clock
}

// sizeMax bounds what a model's tensors may add up to; a larger announcement is ignored.
const sizeMax = math.MaxInt32

// Deadline is the model's SLO: the budget of a request whose context has no deadline.
func (m *Model) Deadline() time.Duration { return time.Duration(m.SLO) }

// ElementSize returns the bytes of one element of an Open Inference Protocol datatype; 0 for BYTES.
// ok is false for a name that is not one of them.
func ElementSize(datatype string) (size int, ok bool) {
	switch datatype {
	case "BOOL", "UINT8", "INT8":
		return 1, true
	case "UINT16", "INT16", "FP16", "BF16":
		return 2, true
	case "UINT32", "INT32", "FP32":
		return 4, true
	case "UINT64", "INT64", "FP64":
		return 8, true
	case "BYTES":
		return 0, true
	}
	return 0, false
}

// TensorBytes returns the bytes of one request's share of a tensor, or -1 for BYTES.
func TensorBytes(t wire.Tensor) (int, error) {
	size, ok := ElementSize(t.Datatype)
	if !ok {
		return 0, fmt.Errorf("tensor %q: datatype %q is not one of the protocol's", t.Name, t.Datatype)
	}
	elements := int64(1)
	for _, d := range t.Shape {
		if d < 0 || d > 0 && elements > sizeMax/d {
			return 0, fmt.Errorf("tensor %q: shape %v: dimensions must be 0 or more and hold at most %d elements", t.Name, t.Shape, sizeMax)
		}
		elements *= d
	}
	if size == 0 {
		return -1, nil
	}
	if elements > sizeMax/int64(size) {
		return 0, fmt.Errorf("tensor %q: shape %v of %s is larger than %d bytes", t.Name, t.Shape, t.Datatype, sizeMax)
	}
	return int(elements) * size, nil
}

func tensorsBytes(ts []wire.Tensor) (int, error) {
	sum := 0
	for _, t := range ts {
		n, err := TensorBytes(t)
		switch {
		case err != nil:
			return 0, err
		case n < 0 || sum < 0:
			sum = -1
		case sum > sizeMax-n:
			return 0, fmt.Errorf("tensors larger than %d bytes in all", sizeMax)
		default:
			sum += n
		}
	}
	return sum, nil
}

type modelName struct{ name, version string }

// modelTable is what is known of the models; it is replaced as a whole.
type modelTable struct {
	byName map[modelName]*Model // version "" is the newest that is ready, or the newest
	all    []*Model             // by name, then version
}

// newModelTable brings a table up to date with an announcement: of what changed, or the first one of
// a session. What was known before a session and is not announced in it is kept as lost: a scheduler
// that restarts hears of its backends' models one by one. An id without a name says that its model is
// forgotten; another one may have the id later.
func newModelTable(infos []wire.ModelInfo, before *modelTable, now int64, first bool) (*modelTable, []error) {
	t := &modelTable{byName: make(map[modelName]*Model, 2*len(infos))}
	gone := map[uint32]bool{}
	var bad []error
	for i := len(infos) - 1; i >= 0; i-- { // of two about one model, the later holds
		m := &Model{ModelInfo: infos[i]}
		if m.Name == "" {
			gone[m.ID] = !first // the ids of other sessions mean nothing now
			continue
		}
		m.Inputs, m.Outputs = slices.Clone(m.Inputs), slices.Clone(m.Outputs)
		var err, err2 error
		m.InputBytes, err = tensorsBytes(m.Inputs)
		m.OutputBytes, err2 = tensorsBytes(m.Outputs)
		if err = cmp.Or(err, err2); err != nil {
			bad = append(bad, fmt.Errorf("model %q version %q: %w", m.Name, m.Version, err))
			continue
		}
		if !m.Ready {
			m.idleAt = before.idleSince(m, now)
		}
		t.add(m)
	}
	if before != nil {
		t.keep(before, gone, now, first)
	}
	slices.SortStableFunc(t.all, func(a, b *Model) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), compareVersions(a.Version, b.Version))
	})
	for _, m := range t.all {
		if old := t.byName[modelName{m.Name, ""}]; old == nil || m.Ready || !old.Ready {
			t.byName[modelName{m.Name, ""}] = m
		}
	}
	return t, bad
}

// add takes a model in, unless a later word about it is there.
func (t *modelTable) add(m *Model) {
	key := modelName{m.Name, m.Version}
	if t.byName[key] == nil {
		t.all = append(t.all, m)
		t.byName[key] = m
	}
}

// lostMax is how long a model that is announced no more is kept in the table.
const lostMax = int64(time.Hour)

// keep takes over what the announcement did not name.
func (t *modelTable) keep(before *modelTable, gone map[uint32]bool, now int64, first bool) {
	for _, m := range before.all {
		if m.lostAt == 0 && gone[m.ID] || m.lostAt > 0 && now-m.lostAt > lostMax {
			continue
		}
		if first {
			lost := *m
			lost.Ready, lost.idleAt = false, before.idleSince(m, now)
			if lost.lostAt == 0 {
				lost.lostAt = max(now, 1)
			}
			m = &lost
		}
		t.add(m)
	}
}

// idleSince is since when a model that is not ready now has not been.
func (t *modelTable) idleSince(m *Model, now int64) int64 {
	if t != nil {
		if old := t.byName[modelName{m.Name, m.Version}]; old != nil && old.idleAt > 0 {
			return old.idleAt
		}
	}
	return max(now, 1)
}

// compareVersions orders 2 before 10; versions that are not numbers come first, as text.
func compareVersions(a, b string) int {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	switch {
	case errX == nil && errY == nil:
		return cmp.Compare(x, y)
	case errX != nil && errY != nil:
		return cmp.Compare(a, b)
	case errX != nil:
		return -1
	}
	return 1
}

// models holds what was announced. Written by the link's goroutine, read by everyone.
type models struct{ table atomic.Pointer[modelTable] }

// Models returns every model that the scheduler announced, by name, then version.
func (c *Client) Models() []*Model {
	t := c.models.table.Load()
	if t == nil {
		return nil
	}
	all := make([]*Model, 0, len(t.all))
	for _, m := range t.all {
		if !c.forgotten(m) {
			all = append(all, m)
		}
	}
	return all
}

// withdrawnAfter is when a model that nobody serves any more is no longer waited for.
const withdrawnAfter = time.Minute

// Ready tells whether the scheduler is connected and every model that it announces has a version
// that a backend serves, one at least. A model that none has served for a minute counts as withdrawn:
// an upgrade that ends with the old version's last backend leaves the frontend ready.
func (c *Client) Ready() bool { return c.Connected() && allReady(c.Models(), c.now()) }

func allReady(models []*Model, now int64) bool {
	ready, awaited := map[string]bool{}, map[string]bool{}
	for _, m := range models {
		if m.Ready {
			ready[m.Name] = true
		} else if now-m.idleAt < int64(withdrawnAfter) {
			awaited[m.Name] = true
		}
	}
	for name := range awaited {
		if !ready[name] {
			return false
		}
	}
	return len(ready) > 0
}

// Model finds a model; an empty version means the newest that is ready. Nil: not announced.
func (c *Client) Model(name, version string) *Model {
	if t := c.models.table.Load(); t != nil {
		if m := t.byName[modelName{name, version}]; m != nil && !c.forgotten(m) {
			return m
		}
	}
	return nil
}

// whyUnknown tells what of a request's model is not announced.
func (c *Client) whyUnknown(r *Request) error {
	if m := c.Model(r.Model, ""); m != nil {
		return fmt.Errorf("version %q is not announced; the newest is %q", r.Version, m.Version)
	}
	return fmt.Errorf("not among the %d models that are announced", len(c.Models()))
}

// forgotten tells whether a model that is announced no more has had its time to come back.
func (c *Client) forgotten(m *Model) bool {
	return m.lostAt > 0 && c.now()-m.lostAt > int64(c.o.Reconnect)
}
