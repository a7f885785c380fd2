//go:build linux

package main

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/models"
)

func describeTensors(ts []model.Tensor) string {
	var out []string
	for _, t := range ts {
		out = append(out, fmt.Sprintf("%s %s %v", t.Name, t.Datatype, t.Shape))
	}
	return strings.Join(out, ", ")
}

// scoreLabels returns the class names that the model's repository lists for its scores; nil if it lists none.
func scoreLabels(m *frontend.Model) []string {
	for _, t := range m.Outputs {
		if t.Name == "scores" {
			return t.Labels
		}
	}
	return nil
}

// shown is the lowest score of a detection that is printed.
const shown = 0.3

// printAnswer prints classes or detections where the output's shape says so, else the tensors as JSON.
func printAnswer(w io.Writer, m *frontend.Model, labels []string, data []byte) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)

	defer tw.Flush()
	values := make([]float32, len(data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}

	// Only the output shapes of this project's own models are printed as classes or detections; any other output is
	// printed as numbers or bytes.
	switch classes := len(labels); {
	case classes > 0 && len(values) == classes:
		order := make([]int, classes)
		for i := range order {
			order[i] = i
		}

		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(values[b], values[a]) })

		for _, i := range order[:min(3, classes)] {
			fmt.Fprintf(tw, "%s\t%.1f %%\n", labels[i], 100*values[i])
		}
	case classes > 0 && len(m.Outputs) == 2 && len(values)%(classes+4) == 0:
		n := len(values) / (classes + 4)
		found, err := models.Decode(values[:n*classes], values[n*classes:], classes, shown, 1, 1)
		if err != nil || len(found) == 0 {
			fmt.Fprintf(tw, "nothing found with a score of %.1f or more\n", shown)
		}
		for _, d := range found {
			fmt.Fprintf(tw, "%s\t%.1f %%\tx %.2f–%.2f\ty %.2f–%.2f\n", labels[d.Class], 100*d.Score, d.Box.X0, d.Box.X1, d.Box.Y0, d.Box.Y1)
		}
	case len(m.Outputs) == 1 && m.Outputs[0].Datatype == model.FP32:
		text, _ := json.Marshal(values) // values is a slice of floats: if one of them is not finite, text is null
		fmt.Fprintf(tw, "%s\t%s\n", m.Outputs[0].Name, text)
	default:
		fmt.Fprintf(tw, "%s\t%d bytes\t%x\n", describeTensors(m.Outputs), len(data), data[:min(len(data), 64)])
	}
}
