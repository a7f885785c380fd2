package residency

import (
	"errors"
	"fmt"
	"time"
)

// ErrDoesNotFit: the contents in use leave too little room, even if all others are evicted.
var ErrDoesNotFit = errors.New("residency: does not fit in device memory")

// Table decides where contents are kept. Only one goroutine at a time may use it.
type Table struct {
	alpha                 float64
	deviceMax, pinnedMax  int64
	deviceUsed, pinnedUse int64
	contents              []entry // by ID
	vacant                []ID    // IDs of removed contents
	typeReuse             [kinds]time.Duration
	typeSLO               [kinds]time.Duration
	byAge                 bool // evict what was used longest ago
	order                 []ID // scratch of one decision
}

type entry struct {
	Content
	live, seen bool
	place      Place
	users      int
	last       time.Duration // when it was last used
	reuse      time.Duration // R: a moving mean of the times between uses
}

// NewTable returns a table for deviceMax and pinnedMax bytes; alpha is a of the score, 0 < a < 1.
func NewTable(deviceMax, pinnedMax int64, alpha float64) (*Table, error) {
	if !(alpha > 0 && alpha < 1) {
		return nil, fmt.Errorf("alpha %v: must be between 0 and 1", alpha)
	}
	if deviceMax <= 0 || pinnedMax < 0 {
		return nil, fmt.Errorf("device bytes %d, pinned bytes %d: must be positive, and not negative", deviceMax, pinnedMax)
	}
	return &Table{alpha: alpha, deviceMax: deviceMax, pinnedMax: pinnedMax, typeReuse: reuseStart}, nil
}

// EvictOldest makes the table evict what was used longest ago, whatever its type and SLO: a baseline for the score.
func (t *Table) EvictOldest() { t.byAge = true }

// Add adds a content; it starts in pageable memory, an intermediate nowhere.
func (t *Table) Add(c Content) (ID, error) {
	switch {
	case c.Kind >= kinds:
		return 0, fmt.Errorf("content %q: kind %d: must be below %d", c.Name, c.Kind, kinds)
	case c.Bytes <= 0 || c.SLO < 0:
		return 0, fmt.Errorf("content %q: %d bytes, SLO %v: must be positive, and not negative", c.Name, c.Bytes, c.SLO)
	case c.Bytes > t.deviceMax:
		return 0, fmt.Errorf("content %q: %d bytes of %d: %w", c.Name, c.Bytes, t.deviceMax, ErrDoesNotFit)
	}

	place := Pageable
	if c.Kind.isIntermediate() {
		place = Nowhere
	}

	// Reuse IDs of removed contents, so that the table does not grow as models come and go.
	if len(t.vacant) == 0 {
		t.contents = append(t.contents, entry{})
		t.vacant = append(t.vacant, ID(len(t.contents)-1))
	}

	id := t.vacant[len(t.vacant)-1]
	t.vacant = t.vacant[:len(t.vacant)-1]

	t.contents[id] = entry{Content: c, live: true, place: place, reuse: t.typeReuse[c.Kind]}
	t.meanSLO(c.Kind)
	return id, nil
}

func (t *Table) meanSLO(k Kind) {
	var sum time.Duration
	n := 0
	for i := range t.contents {
		if e := &t.contents[i]; e.live && e.Kind == k {
			sum += e.SLO
			n++
		}
	}
	if n > 0 {
		t.typeSLO[k] = sum / time.Duration(n)
	}
}

// Remove removes a content that is not in use; its place is free at once.
func (t *Table) Remove(id ID) error {
	e, err := t.findEntry(id)
	if err != nil {
		return err
	}
	if e.users > 0 {
		return fmt.Errorf("remove content %q: in use", e.Name)
	}

	t.putEntry(e, Nowhere)
	e.live = false
	t.vacant = append(t.vacant, id)
	t.meanSLO(e.Kind)
	return nil
}

func (t *Table) findEntry(id ID) (*entry, error) {
	if int(id) >= len(t.contents) || !t.contents[id].live {
		return nil, fmt.Errorf("content %d: not known", id)
	}
	return &t.contents[id], nil
}

// Place returns a content's place; Nowhere for an unknown one.
func (t *Table) Place(id ID) Place {
	if e, err := t.findEntry(id); err == nil {
		return e.place
	}
	return Nowhere
}

// Score returns S of a content; a content with a lower score stays longer. By age it is the negative time of its last use.
func (t *Table) Score(id ID) time.Duration {
	e, err := t.findEntry(id)
	switch {
	case err != nil:
		return 0
	case t.byAge:
		return -e.last
	}
	return t.scoreOf(e.reuse, e.SLO)
}

// TypeScore returns S of a data type, by its mean reuse time and mean SLO.
func (t *Table) TypeScore(k Kind) time.Duration { return t.scoreOf(t.typeReuse[k], t.typeSLO[k]) }

func (t *Table) scoreOf(reuse, slo time.Duration) time.Duration {
	return time.Duration((1-t.alpha)*float64(reuse) + t.alpha*float64(slo))
}

func (t *Table) putEntry(e *entry, to Place) {
	switch e.place {
	case Device:
		t.deviceUsed -= e.Bytes
	case Pinned:
		t.pinnedUse -= e.Bytes
	}

	switch to {
	case Device:
		t.deviceUsed += e.Bytes
	case Pinned:
		t.pinnedUse += e.Bytes
	}

	e.place = to
}

// Used returns the bytes in device and pinned memory.
func (t *Table) Used() (device, pinned int64) { return t.deviceUsed, t.pinnedUse }
