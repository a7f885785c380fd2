package sched

import (
	"reflect"
	"testing"
)

// TestModelLayout: the fields of a model that every request reads lie in its first cache line, and a request takes
// three quarters of one.
func TestModelLayout(t *testing.T) {
	m := reflect.TypeFor[model]()
	if m.Size()%64 != 0 {
		t.Errorf("a model has %d bytes, want a multiple of 64", m.Size())
	}
	if f, _ := m.FieldByName("soonest"); f.Offset > 64-8 {
		t.Errorf("soonest lies at %d: not in the first line", f.Offset)
	}
	r := reflect.TypeFor[resident]()
	if r.Size()%64 != 0 {
		t.Errorf("a resident has %d bytes, want a multiple of 64", r.Size())
	}
	x, _ := r.FieldByName("execution")
	if f, _ := x.Type.FieldByName("exec"); x.Offset+f.Offset > 64-16 {
		t.Errorf("exec lies at %d of a resident: its address and length are not in the first line", x.Offset+f.Offset)
	}
	if n := reflect.TypeFor[Request]().Size(); n != 48 {
		t.Errorf("a request has %d bytes, want 48", n)
	}
	for _, x := range []reflect.Type{reflect.TypeFor[gpu](), reflect.TypeFor[rival](), reflect.TypeFor[rest]()} {
		if x.Size() != 64 {
			t.Errorf("a %s has %d bytes, want 64: cores take turns with it", x.Name(), x.Size())
		}
	}
}
