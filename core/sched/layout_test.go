package sched

import (
	"reflect"
	"testing"
)

// TestModelLayout: what every request reads of a model lies in its first two cache lines.
func TestModelLayout(t *testing.T) {
	m := reflect.TypeFor[model]()
	if m.Size()%64 != 0 {
		t.Errorf("a model has %d bytes, want a multiple of 64", m.Size())
	}
	if f, _ := m.FieldByName("last"); f.Offset > 128-8 {
		t.Errorf("last lies at %d: not in the first two lines", f.Offset)
	}
}
