//go:build cgo

package learn

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestARollbackReachesVersionsBeforeARestart: a learner that begins with version 5 has version 4 in its store, from before
// its process was restarted. It can be put in force again.
func TestARollbackReachesVersionsBeforeARestart(t *testing.T) {
	s := openStreet(t)
	gone := errors.New("the file is not there")
	var before []float32
	var published []Version
	l := s.learner(func(o *Options) {
		o.Version = 5
		before = slices.Clone(o.Weights)
		before[0]++
		o.Publish = func(v Version) error { published = append(published, v); return nil }
		o.Stored = func(version int) ([]float32, error) {
			if version != 4 {
				return nil, gone
			}
			return before, nil
		}
	})

	if err := l.Rollback(3); !errors.Is(err, gone) || !strings.Contains(err.Error(), "roll back to version 3") {
		t.Errorf("a version that is nowhere: %v", err)
	}
	if err := l.Rollback(4); err != nil {
		t.Fatal(err)
	}
	if len(published) != 1 || published[0].Number != 6 || !slices.Equal(published[0].Weights, before) || l.Version() != 6 {
		t.Errorf("%d published, version %d serves, want the weights of version 4 as version 6", len(published), l.Version())
	}
	if err := l.Rollback(5); err != nil || l.Version() != 7 {
		t.Errorf("back again: version %d, %v", l.Version(), err)
	}
}
