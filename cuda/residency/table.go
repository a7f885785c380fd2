package residency

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Kind is a content's data type, which AdaInf distinguishes by its use (§2.4, figure 12).
type Kind uint8

// The data types. Their reuse times in AdaInf's measurements give the start values of R.
const (
	Intermediates        Kind = iota // outputs of layers during inference: 0.01 to 1.6 ms
	RetrainParameters                // 0.02 to 6 ms
	RetrainIntermediates             // 0.02 to 7.5 ms
	Parameters                       // of inference: 67 to 68.6 ms, the next request of the application
	kinds
)

// reuseStart is the middle of each range of AdaInf figure 12a.
var reuseStart = [kinds]time.Duration{
	805 * time.Microsecond, 3010 * time.Microsecond, 3760 * time.Microsecond, 67800 * time.Microsecond,
}

// String names the kind.
func (k Kind) String() string {
	if k < kinds {
		return [kinds]string{"intermediates", "retrain_parameters", "retrain_intermediates", "parameters"}[k]
	}
	return "invalid"
}

// Place is the location of a content.
type Place uint8

// The places. Nowhere means a content without bytes: an intermediate before and after its batch.
const (
	Nowhere Place = iota
	Device
	Pinned
	Pageable
)

// ID identifies a content of one Table from Add to Remove; afterwards another content may get it.
type ID uint32

// Content is a Table's description of a content.
type Content struct {
	Name  string // model and layer, for errors
	Kind  Kind
	Bytes int64
	SLO   time.Duration
}

// Move is one step that the caller must perform, in order.
type Move struct {
	ID       ID
	From, To Place
}

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

func (k Kind) isIntermediate() bool { return k == Intermediates || k == RetrainIntermediates }

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

// Acquire puts ids in use at now and appends the moves that make room for them and bring them in. After an error
// nothing is in use and nothing has moved. Several batches may acquire an id at once.
func (t *Table) Acquire(now time.Duration, ids []ID, moves []Move) ([]Move, error) {
	var need int64

	for i, id := range ids {
		e, err := t.findEntry(id)
		if err != nil {
			t.endUses(ids[:i])
			return moves, err
		}
		if e.users++; e.users == 1 && e.place != Device {
			need += e.Bytes
		}
	}

	// Contents in use cannot leave. If they alone are too large, no eviction helps.
	if held := t.heldBytes(); held > t.deviceMax {
		t.endUses(ids)
		return moves, fmt.Errorf("%d contents need %d bytes, with what else is in use %d of %d: %w", len(ids), need, held, t.deviceMax, ErrDoesNotFit)
	}

	moves = t.makeRoom(need, moves)

	for _, id := range ids {
		e := &t.contents[id]
		if e.place != Device {
			moves = append(moves, Move{id, e.place, Device})
			t.putEntry(e, Device)
		}
		t.learnUse(e, now)
	}
	return moves, nil
}

// hasRoom reports whether a content is on the device, or fits there without evicting others.
func (t *Table) hasRoom(id ID) bool {
	e, err := t.findEntry(id)
	return err == nil && (e.place == Device || t.deviceUsed+e.Bytes <= t.deviceMax)
}

func (t *Table) endUses(ids []ID) {
	for _, id := range ids {
		t.contents[id].users--
	}
}

// heldBytes returns the bytes of all contents in use.
func (t *Table) heldBytes() (n int64) {
	for i := range t.contents {
		if e := &t.contents[i]; e.live && e.users > 0 {
			n += e.Bytes
		}
	}
	return n
}

// learnUse updates the reuse time of a content and of its type: a moving mean over about eight uses.
func (t *Table) learnUse(e *entry, now time.Duration) {
	if e.seen && now > e.last {
		e.reuse += (now - e.last - e.reuse) / 8
		t.typeReuse[e.Kind] += (now - e.last - t.typeReuse[e.Kind]) / 64
	}
	e.seen, e.last = true, now
}

// Release ends a use of ids. Intermediates without a use are freed (§3.4.1).
func (t *Table) Release(ids []ID, moves []Move) []Move {
	for _, id := range ids {
		e, err := t.findEntry(id)
		if err != nil || e.users == 0 {
			panic(fmt.Sprintf("residency: release of content %d, which is not in use", id))
		}
		if e.users--; e.users == 0 && e.Kind.isIntermediate() {
			moves = append(moves, Move{id, e.place, Nowhere})
			t.putEntry(e, Nowhere)
		}
	}
	return moves
}

// Evict evicts one more content from the device, for a caller whose allocator found no room because of fragmentation.
// It returns false if all contents are in use.
func (t *Table) Evict(moves []Move) ([]Move, bool) {
	t.orderVictims()
	if len(t.order) == 0 {
		return moves, false
	}
	return t.evictContent(t.order[0], moves), true
}

// makeRoom evicts until need bytes are free. Acquire has checked that this is possible.
func (t *Table) makeRoom(need int64, moves []Move) []Move {
	if t.deviceUsed+need <= t.deviceMax {
		return moves
	}

	t.orderVictims()
	for _, id := range t.order {
		if t.deviceUsed+need <= t.deviceMax {
			break
		}
		moves = t.evictContent(id, moves)
	}
	return collapseMoves(moves)
}

// collapseMoves merges two moves of one decision: a content that is pinned and then moved on goes directly to
// pageable memory.
func collapseMoves(moves []Move) []Move {
	for i := len(moves) - 1; i >= 0; i-- {
		if moves[i].From != Pinned || moves[i].To != Pageable {
			continue
		}
		first := slices.Index(moves[:i], Move{moves[i].ID, Device, Pinned})
		if first >= 0 {
			moves[first].To = Pageable
			moves = slices.Delete(moves, i, i+1)
		}
	}
	return moves
}

// orderVictims orders what may leave the device: by type first, then by score, then by ID (R3, R4); or by age.
func (t *Table) orderVictims() {
	t.order = t.order[:0]
	for i := range t.contents {
		if e := &t.contents[i]; e.live && e.place == Device && e.users == 0 {
			t.order = append(t.order, ID(i))
		}
	}

	slices.SortFunc(t.order, func(a, b ID) int {
		x, y := &t.contents[a], &t.contents[b]
		if t.byAge {
			return cmp.Or(cmp.Compare(x.last, y.last), cmp.Compare(a, b))
		}
		return cmp.Or(
			cmp.Compare(t.TypeScore(y.Kind), t.TypeScore(x.Kind)),
			cmp.Compare(x.Kind, y.Kind),
			cmp.Compare(t.Score(b), t.Score(a)),
			cmp.Compare(a, b))
	})
}

// evictContent moves one content out: to pinned memory if there is room, or if contents with higher scores can move
// on to pageable memory; otherwise to pageable memory.
func (t *Table) evictContent(id ID, moves []Move) []Move {
	e := &t.contents[id]

	// Pinned memory is for the contents needed soonest: those with higher scores make way.
	to := Pageable
	if t.pinnedUse+e.Bytes-t.pinnedAbove(t.Score(id)) <= t.pinnedMax {
		to = Pinned
		for t.pinnedUse+e.Bytes > t.pinnedMax {
			worst := t.worstPinned()
			moves = append(moves, Move{worst, Pinned, Pageable})
			t.putEntry(&t.contents[worst], Pageable)
		}
	}

	moves = append(moves, Move{id, Device, to})
	t.putEntry(e, to)
	return moves
}

// pinnedAbove returns the pinned bytes of contents with a higher score that may make way.
func (t *Table) pinnedAbove(score time.Duration) (n int64) {
	for i := range t.contents {
		if e := &t.contents[i]; e.mayLeavePinned() && t.Score(ID(i)) > score {
			n += e.Bytes
		}
	}
	return n
}

// mayLeavePinned reports whether a content is in pinned memory to stay. One in use is about to be copied to the device,
// which takes longer from pageable memory.
func (e *entry) mayLeavePinned() bool { return e.live && e.place == Pinned && e.users == 0 }

func (t *Table) worstPinned() ID {
	worst := -1
	for i := range t.contents {
		if e := &t.contents[i]; e.mayLeavePinned() && (worst < 0 || t.Score(ID(i)) > t.Score(ID(worst))) {
			worst = i
		}
	}
	return ID(worst)
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
