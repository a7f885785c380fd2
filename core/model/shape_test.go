package model

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// open is a model with an input of fixed size, one with two open dimensions, and optional inputs of both kinds.
var open = Info{Optional: 1<<2 | 1<<3, Inputs: []Tensor{{Name: "fixed", Datatype: FP32, Shape: []int64{4}}, {Name: "image", Datatype: FP32, Shape: []int64{3, OpenDim, OpenDim}},
	{Name: "bias", Datatype: FP32, Shape: []int64{2}}, {Name: "mask", Datatype: FP32, Shape: []int64{OpenDim}}}}

// TestAClassNamesShapes shows that shapes become a class and the class becomes the same shapes.
func TestAClassNamesShapes(t *testing.T) {
	for class, shapes := range map[string][][]int64{
		"7x2,-,-":  {{4}, {3, 7, 2}, nil, nil},
		"7x2,+,-":  {{4}, {3, 7, 2}, {2}, nil},
		"1x30,+,9": {{4}, {3, 1, 30}, {2}, {9}},
		"0x30,-,0": {{4}, {3, 0, 30}, nil, {0}},
	} {
		got, err := open.ClassOf(shapes)
		if err != nil || got != class {
			t.Errorf("%v: %q %v, want %q", shapes, got, err, class)
		}
		if back, err := open.ClassShapes(class); err != nil || !reflect.DeepEqual(back, shapes) {
			t.Errorf("%q: %v %v, want %v", class, back, err, shapes)
		}
		if whole, part := SplitVersion(ClassVersion("12", class)); whole != "12" || part != class {
			t.Errorf("%q: split into %q and %q", class, whole, part)
		}
	}
	if whole, class := SplitVersion("3"); whole != "3" || class != "" {
		t.Errorf("a version: %q %q", whole, class)
	}
}

// TestWhatFitsNoClassIsTold checks shapes from callers, and classes from other processes.
func TestWhatFitsNoClassIsTold(t *testing.T) {
	for want, shapes := range map[string][][]int64{
		`input "fixed": is missing`:                        {nil, {3, 1, 1}, nil, nil},
		`input "image": shape [0 1 1]: must be [3 -1 -1]`:  {{4}, {0, 1, 1}, nil, nil},
		`input "image": shape [3 -1 1]: must be [3 -1 -1]`: {{4}, {3, -1, 1}, nil, nil},
		`input "image": shape [4 1 1]: must be [3 -1 -1]`:  {{4}, {4, 1, 1}, nil, nil},
		`input "bias": shape [2 1]: must be [2]`:           {{4}, {3, 1, 1}, {2, 1}, nil},
	} {
		if class, err := open.ClassOf(shapes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %q %v, want %s", shapes, class, err, want)
		}
	}
	for _, class := range []string{"", "7", "7x2", "7x2,-", "7x2,-,-,-", "07x2,-,-", "7x2x1,-,-", "7x-2,-,-", "7x00,-,-", "7x-0,-,-", "-,-,-", "7x2,?,-", "7x2,-,+", "7x99999999999999999999,-,-", "a,b,c"} {
		if shapes, err := open.ClassShapes(class); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("shape class %.60q: ", class)) {
			t.Errorf("class %q: %v %v, want an error that names it", class, shapes, err)
		}
	}

	all := Info{Optional: 1, Inputs: []Tensor{{Name: "x", Datatype: FP32, Shape: []int64{1}}}}
	if _, err := all.ClassOf([][]int64{nil}); err == nil || !strings.Contains(err.Error(), "want one at least") {
		t.Errorf("nothing given: %v", err)
	}
	plain := Info{Inputs: []Tensor{{Name: "x", Datatype: FP32, Shape: []int64{1}}}}
	if plain.HasClasses() || !open.HasClasses() || !all.HasClasses() {
		t.Error("which models have classes is told wrongly")
	}
}

// FuzzClassShapes shows that a valid class names its shapes in one way only.
func FuzzClassShapes(f *testing.F) {
	for _, class := range []string{"7x2,-,-", "1x30,+,9", "", "1x1,+", "9223372036854775807x1,-,1"} {
		f.Add(class)
	}
	f.Fuzz(func(t *testing.T, class string) {
		shapes, err := open.ClassShapes(class)
		if err != nil {
			return
		}
		if again, err := open.ClassOf(shapes); err != nil || again != class {
			t.Errorf("%q: shapes %v are %q %v", class, shapes, again, err)
		}
	})
}
