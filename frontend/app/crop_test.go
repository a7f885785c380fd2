package app

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"downbeat.dev/core/model"
)

// cropStep returns a step with the hook crop over an image of 20×40 and three classes in four cells.
func cropStep() *Step {
	tensor := func(name string, d model.Datatype, shape ...int64) model.Tensor {
		return model.Tensor{Name: name, Datatype: d, Shape: shape}
	}
	return &Step{Name: "crop", With: map[string]string{"cars": "1 2", "threshold": "0.4"},
		Inputs:  []model.Tensor{tensor("boxes", model.FP32, 4, 4), tensor("image", model.Uint8, 20, 40, 3), tensor("scores", model.FP32, 4, 3)},
		Outputs: []OutputInfo{{tensor("cars", model.Uint8, 8, 8, 3), 2}, {tensor("cars_boxes", model.FP32, 5), 2}}}
}

func floats(all ...float32) (b []byte) {
	for _, x := range all {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func TestCropCutsOutTheBestOfEachClass(t *testing.T) {
	hook, err := newCrop(cropStep())
	if err != nil {
		t.Fatal(err)
	}

	// The image is dark except for a bright square of 10×10 with its corner at (20, 5).
	image := make([]byte, 20*40*3)
	for y := 5; y < 15; y++ {
		for x := 20; x < 30; x++ {
			copy(image[(y*40+x)*3:], []byte{200, 100, 50})
		}
	}
	nan := float32(math.NaN())
	boxes := floats(0.5, 0.25, 0.75, 0.75, 0.5, 0.25, 0.76, 0.76, 0, 0, 0.3, 0.9, nan, 0, 1, 1)
	scores := floats(0, 0.9, 0, 0, 0.8, 0, 0.95, 0, 0.5, 0, 0.99, nan)

	c := Call{In: []Value{{boxes}, {image}, {scores}}, Out: make([]Value, 2)}
	if err := hook(context.Background(), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Out[0]) != 2 || len(c.Out[1]) != 2 {
		t.Fatalf("%d crops, %d boxes; want the square once and the third cell's: class 0 is not asked for", len(c.Out[0]), len(c.Out[1]))
	}
	if want := string(floats(20, 5, 30, 15, 0.9)); string(c.Out[1][0]) != want {
		t.Errorf("box % x, want % x", c.Out[1][0], want)
	}
	crop := c.Out[0][0]
	if middle := crop[(4*8+4)*3:][:3]; middle[0] != 200 || middle[1] != 100 || middle[2] != 50 {
		t.Errorf("the middle of the crop is %v, want the square's colour", middle)
	}
	if corner := crop[:3]; corner[0] >= 200 || corner[0] == 0 {
		t.Errorf("the corner of the crop is %v, want some of the ground around the square", corner)
	}
}

func TestCropRefusesWhatItCannotWorkWith(t *testing.T) {
	for want, change := range map[string]func(s *Step){
		"want image, scores and boxes":        func(s *Step) { s.Inputs[0].Name = "x" },
		"image: FP32 [20 40 3]: want UINT8":   func(s *Step) { s.Inputs[1].Datatype = model.FP32 },
		"boxes: FP32 [5 4]: want FP32 [4 4]":  func(s *Step) { s.Inputs[0].Shape = []int64{5, 4} },
		"scores: FP32 [4]: want FP32":         func(s *Step) { s.Inputs[2].Shape = []int64{4} },
		`threshold: "2": want 0 to 1`:         func(s *Step) { s.With["threshold"] = "2" },
		`class "3": want 0 to 2`:              func(s *Step) { s.With["cars"] = "3" },
		`class "x": want 0 to 2`:              func(s *Step) { s.With["cars"] = "x" },
		`setting "bikes": want threshold, or`: func(s *Step) { s.With["bikes"] = "0" },
		`output "cars": want a setting`:       func(s *Step) { delete(s.With, "cars") },
		`output "cars": UINT8 [8 8]: want`:    func(s *Step) { s.Outputs[0].Shape = []int64{8, 8} },
		`output "cars_boxes": FP32 [4], most`: func(s *Step) { s.Outputs[1].Shape = []int64{4} },
	} {
		s := cropStep()
		change(s)
		if _, err := newCrop(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}

// FuzzCrop shows that the hook returns what it declared, whatever a detector answers.
func FuzzCrop(f *testing.F) {
	f.Add([]byte{0, 0, 0, 63, 0, 0, 128, 62}, []byte{0, 0, 128, 63, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, some, more []byte) {
		s := cropStep()
		hook, err := newCrop(s)
		if err != nil {
			t.Fatal(err)
		}
		scores, boxes := make([]byte, 48), make([]byte, 64)
		for i := range scores {
			if len(some) > 0 {
				scores[i] = some[i%len(some)]
			}
		}
		for i := range boxes {
			if len(more) > 0 {
				boxes[i] = more[i%len(more)]
			}
		}
		c := Call{In: []Value{{boxes}, {make([]byte, 20*40*3)}, {scores}}, Out: make([]Value, 2)}
		if err := hook(context.Background(), &c); err != nil {
			t.Fatal(err)
		}
		for i := range c.Out {
			if err := checkValue(&s.Outputs[i].TensorInfo, s.Outputs[i].Most, c.Out[i]); err != nil {
				t.Fatal(err)
			}
		}
	})
}
