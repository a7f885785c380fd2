package frontend

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/model"
)

// modelTable holds the known models; it is replaced as a whole.
type modelTable struct {
	byID   map[uint32]*Model    // ids of this session
	byName map[modelName]*Model // version "" is the newest ready version, or the newest if none is ready
	all    []*Model             // by name, then version
}

// newModelTable updates a table by an announcement: of changes, or the first one of a session. Models of an earlier
// session that a first announcement does not name are kept as lost: a restarted scheduler learns of its backends'
// models one by one. An id without a name means that its model is forgotten; the id may later be another model's.
func newModelTable(infos []model.Info, before *modelTable, now int64, first bool) (*modelTable, []error) {
	t := &modelTable{byName: make(map[modelName]*Model, 2*len(infos)), byID: make(map[uint32]*Model, len(infos))}

	gone := map[uint32]bool{}
	var bad []error
	for i := len(infos) - 1; i >= 0; i-- { // of two entries for one model, the later one holds
		m := &Model{ModelInfo: infos[i]}

		if m.Name == "" {
			gone[m.ID] = !first // ids of other sessions mean nothing now
			continue
		}

		// The catalogue's slices are valid only during the call.
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

	// Sorted by name and version, so that the last of a name is its newest.
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

		// A name without a version means the newest ready version, or the newest if none is ready.
		if old := t.byName[modelName{m.Name, ""}]; old == nil || m.Ready || !old.Ready {
			t.byName[modelName{m.Name, ""}] = m
		}
	}
	return t, bad
}

// addModel adds a model, unless the table has a later entry for it.
func (t *modelTable) addModel(m *Model) {
	key := modelName{m.Name, m.announced}
	if t.byName[key] == nil {
		t.all = append(t.all, m)
		t.byName[key] = m
	}
}

// lostMax is how long the table keeps a model that is no longer announced.
const lostMax = int64(time.Hour)

// keepKnown keeps the models that the announcement did not name.
func (t *modelTable) keepKnown(before *modelTable, gone map[uint32]bool, now int64, first bool) {
	for _, m := range before.all {
		// A withdrawn model is removed; one that disappeared with its scheduler is kept for some time, as it may
		// return.
		if m.lostAt == 0 && gone[m.ID] || m.lostAt > 0 && now-m.lostAt > lostMax {
			continue
		}
		if first {
			// A copy, because calls in progress hold the previous one.
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

// idleSince returns since when a model has not been ready.
func (t *modelTable) idleSince(m *Model, now int64) int64 {
	if t != nil {
		if old := t.byName[modelName{m.Name, m.announced}]; old != nil && old.idleAt > 0 {
			return old.idleAt
		}
	}
	return max(now, 1)
}
