//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"downbeat.dev/models"
	"downbeat.dev/models/scene"
)

// streetAnswer is what traffic says of a street, as REST has it.
type streetAnswer struct {
	Outputs []struct {
		Name  string
		Shape []int
		Data  []float64
	}
}

// TestTrafficSeesTheStreet serves the tree's models and asks for whole frames over REST: what the application says of
// rendered streets is held against what was rendered.
func TestTrafficSeesTheStreet(t *testing.T) {
	p := serveReal(t, "../../models", nil)
	recipe, ok := models.Find("detector-m")
	if !ok {
		t.Fatal("no recipe of detector-m")
	}

	painter, pixels := models.NewPainter(), make([]byte, 96*96*3)
	found, right := 0, 0
	for i := range uint64(12) {
		truth, err := recipe.Draw(painter, 5, i, nil, pixels)
		if err != nil {
			t.Fatal(err)
		}
		data := strings.ReplaceAll(strings.Trim(fmt.Sprint(pixels), "[]"), " ", ",")
		body := `{"parameters":{"timeout":600000000},"inputs":[{"name":"image","datatype":"UINT8","shape":[96,96,3],"data":[` + data + `]}]}`
		code, text := ask(t, p, "/v2/models/traffic/infer", body)
		var a streetAnswer
		if err := json.Unmarshal([]byte(text), &a); err != nil || code != 200 || len(a.Outputs) != 8 {
			t.Fatalf("%d %.300s, %v; want 8 outputs", code, text, err)
		}

		boxes, kinds, n := a.Outputs[0].Data, a.Outputs[2].Data, int(a.Outputs[1].Data[0])
		if int(a.Outputs[3].Data[0]) != n || len(boxes) != 16*5 || len(kinds) != 16*6 {
			t.Fatalf("%d vehicles, %v kinds, %d and %d numbers", n, a.Outputs[3].Data, len(boxes), len(kinds))
		}
		for v := range n {
			kind := bestOf(kinds[6*v:][:6])
			for _, o := range truth.Objects {
				box := scene.Rect{X0: boxes[5*v], Y0: boxes[5*v+1], X1: boxes[5*v+2], Y1: boxes[5*v+3]}
				if o.Kind != scene.Person && o.Box.IoU(box) > 0.5 {
					found++
					if scene.Kind(kind+1) == o.Kind {
						right++
					}
					break
				}
			}
		}
	}
	t.Logf("%d vehicles found, %d of them called what they are", found, right)
	if found < 10 || right*4 < found*3 {
		t.Errorf("%d of %d vehicles were called what they are, want most, of 10 or more", right, found)
	}
}

// bestOf is the index of the largest number.
func bestOf(scores []float64) (best int) {
	for i, s := range scores {
		if s > scores[best] {
			best = i
		}
	}
	return best
}
