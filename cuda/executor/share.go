package executor

import (
	"crypto/sha256"

	"downbeat.dev/cuda/residency"
)

// contentKey identifies the bytes of a layer's parameters.
type contentKey [sha256.Size]byte

// sharedContent is a content of the store that several models may use.
type sharedContent struct {
	id    residency.ID
	users int
}

// addContent adds a layer's parameters to the store, or finds them there if another model has added them.
func (m *Model) addContent(c residency.Content, data []byte) (residency.ID, error) {
	if !m.share {
		return m.r.store.Add(c, data)
	}

	// Compare bytes to find common layers: a name or a place in a file may be wrong.
	key := contentKey(sha256.Sum256(data))
	s := m.r.shared[key]
	if s == nil {
		id, err := m.r.store.Add(c, data)
		if err != nil {
			return id, err
		}
		s = &sharedContent{id: id}
		m.r.shared[key] = s
	}
	s.users++
	m.held = append(m.held, key)
	return s.id, nil
}

// releaseContents ends the model's uses of shared contents, and returns the contents of parameters that no model uses any
// more.
func (m *Model) releaseContents() (own []residency.ID) {
	if m.share {
		for _, key := range m.held {
			s := m.r.shared[key]
			if s.users--; s.users == 0 {
				own = append(own, s.id)
				delete(m.r.shared, key)
			}
		}
		m.held = nil

		// Launches write the counters, so no other model shares them.
		if at, ok := m.params[countersName]; ok {
			own = append(own, at.content)
		}
		return own
	}

	for _, at := range m.params {
		own = append(own, at.content)
	}
	return own
}
