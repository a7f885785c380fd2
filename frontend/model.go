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

	lostAt int64 // 0: announced now; else when it was announced no more, on the client's clock
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

// modelTable is one announcement; it is replaced as a whole.
type modelTable struct {
	byName map[modelName]*Model // version "" is the newest that is ready, or the newest
	all    []*Model             // by name, then version
}

// newModelTable makes a table of an announcement. What the one before had and this one has not is
// kept as lost: a scheduler that restarts hears of its backends' models one by one.
func newModelTable(infos []wire.ModelInfo, before *modelTable, now int64) (*modelTable, []error) {
	t := &modelTable{byName: make(map[modelName]*Model, 2*len(infos))}
	var bad []error
	for _, info := range infos {
		m := &Model{ModelInfo: info}
		m.Inputs, m.Outputs = slices.Clone(info.Inputs), slices.Clone(info.Outputs)
		var err, err2 error
		m.InputBytes, err = tensorsBytes(m.Inputs)
		m.OutputBytes, err2 = tensorsBytes(m.Outputs)
		if err = cmp.Or(err, err2); err != nil {
			bad = append(bad, fmt.Errorf("model %q version %q: %w", info.Name, info.Version, err))
			continue
		}
		t.all = append(t.all, m)
		t.byName[modelName{m.Name, m.Version}] = m
	}
	if before != nil {
		t.keep(before, now)
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

func (t *modelTable) keep(before *modelTable, now int64) {
	for _, m := range before.all {
		if t.byName[modelName{m.Name, m.Version}] != nil {
			continue
		}
		lost := *m
		lost.Ready = false
		if lost.lostAt == 0 {
			lost.lostAt = max(now, 1)
		}
		t.all = append(t.all, &lost)
		t.byName[modelName{m.Name, m.Version}] = &lost
	}
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

// models holds the last announcement. Written by the link's goroutine, read by everyone.
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
