package engine

import (
	"reflect"
	"testing"
)

// TestBatchLayout: what a batch reads of its GPU and its model lies in few cache lines, which start where the memory of such
// a value starts.
func TestBatchLayout(t *testing.T) {
	for _, x := range []struct {
		of    reflect.Type
		field string
		end   uintptr // of the field, at most
	}{
		{reflect.TypeFor[gpu](), "gpuCounts", 64},
		{reflect.TypeFor[gpuCounts](), "stepCounts", 64},
		{reflect.TypeFor[modelCount](), "sizes", 64},
		{reflect.TypeFor[answers](), "firstVariants", 64},
		{reflect.TypeFor[answers](), "firstCounts", 192},
		{reflect.TypeFor[flight](), "piece", 128},
	} {
		f, _ := x.of.FieldByName(x.field)
		if end := f.Offset + f.Type.Size(); end > x.end {
			t.Errorf("%s.%s ends at %d, want at most %d", x.of.Name(), x.field, end, x.end)
		}
		if x.of.Size()%64 != 0 {
			t.Errorf("a %s has %d bytes, want a multiple of 64", x.of.Name(), x.of.Size())
		}
	}
}
