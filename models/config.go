package models

import (
	"fmt"
	"strings"

	"downbeat.dev/core/repo"
)

// writeConfig returns the config.pbtxt of the recipe's model, or of its exit k from 1.
func (r Recipe) writeConfig(k int, accuracy float64, seed uint64) string {
	h, w := r.Size()
	var b strings.Builder
	fmt.Fprintf(&b, "name: %q\nplatform: %q\nmax_batch_size: %d\n", r.exitOrName(k), repo.PlatformONNX, BatchMax)
	fmt.Fprintf(&b, "input [\n  { name: \"image\" data_type: TYPE_UINT8 dims: [ %d, %d, 3 ] }\n]\n", h, w)

	n := len(r.data.labels())

	// A detector answers once per cell of its grid, a classifier once.
	if r.Family == "detector" {
		fmt.Fprintf(&b, "output [\n  { name: \"scores\" data_type: TYPE_FP32 dims: [ %d, %d ] label_filename: \"labels.txt\" },\n", cells*cells, n)
		fmt.Fprintf(&b, "  { name: \"boxes\" data_type: TYPE_FP32 dims: [ %d, 4 ] }\n]\n", cells*cells)
	} else {
		fmt.Fprintf(&b, "output [\n  { name: \"scores\" data_type: TYPE_FP32 dims: [ %d ] label_filename: \"labels.txt\" }\n]\n", n)
	}

	// Clients distinguish variants by these parameters; Check needs the seed and the accuracy.
	params := [][2]string{{"slo_ms", fmt.Sprint(r.SLO)}, {"family", r.Family}, {"variant", strings.TrimPrefix(r.exitOrName(k), r.Family+"-")},
		{"accuracy", fmt.Sprintf("%.4f", accuracy)}, {"seed", fmt.Sprint(seed)}}
	if k > 0 {
		params = append(params, [2]string{"exit_of", r.Name()}, [2]string{"exit_stage", fmt.Sprint(k)})
	}
	params = append(params, [2]string{"picture", "image"}) // a JPEG or a PNG, stretched to the size
	for _, p := range params {
		fmt.Fprintf(&b, "parameters { key: %q value { string_value: %q } }\n", p[0], p[1])
	}
	return b.String()
}
