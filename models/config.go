package models

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"downbeat.dev/core/repo"
)

// config writes the model's config.pbtxt.
func (r Recipe) config(accuracy float64, seed uint64) string {
	h, w := r.Size()
	var b strings.Builder
	fmt.Fprintf(&b, "name: %q\nplatform: %q\nmax_batch_size: %d\n", r.Name(), repo.PlatformONNX, BatchMax)
	fmt.Fprintf(&b, "input [\n  { name: \"image\" data_type: TYPE_UINT8 dims: [ %d, %d, 3 ] }\n]\n", h, w)
	n := len(r.data.labels())
	if r.Family == "detector" {
		fmt.Fprintf(&b, "output [\n  { name: \"scores\" data_type: TYPE_FP32 dims: [ %d, %d ] label_filename: \"labels.txt\" },\n", cells*cells, n)
		fmt.Fprintf(&b, "  { name: \"boxes\" data_type: TYPE_FP32 dims: [ %d, 4 ] }\n]\n", cells*cells)
	} else {
		fmt.Fprintf(&b, "output [\n  { name: \"scores\" data_type: TYPE_FP32 dims: [ %d ] label_filename: \"labels.txt\" }\n]\n", n)
	}
	for _, p := range [][2]string{{"slo_ms", fmt.Sprint(r.SLO)}, {"family", r.Family}, {"variant", r.Variant},
		{"accuracy", fmt.Sprintf("%.4f", accuracy)}, {"seed", fmt.Sprint(seed)}} {
		fmt.Fprintf(&b, "parameters { key: %q value { string_value: %q } }\n", p[0], p[1])
	}
	return b.String()
}

const readmeHead = `# Models

A Triton-compatible model repository of nine small networks, trained from scratch on street scenes
that ` + "`bench/scene`" + ` renders. No data was downloaded, no Python ran.

| model | input (UINT8) | outputs (FP32) | %s | MFLOP | weights | file |
|---|---|---|---|---|---|---|
`

const readmeTail = `
Accuracy is the share of right classes on %d held-out crops; of a detector, the mean average precision
at IoU 0.5 on %d held-out streets. MFLOP counts two per multiply-accumulate, for one image.

- **image**: pixels as they are, row by row, red green blue. Scaling is part of the graph.
- **scores** of a classifier: probabilities by label. Of a detector: %d cells × labels, objectness times
  class probability. Labels are in each model's ` + "`labels.txt`" + `, one per line.
- **boxes**: x0 y0 x1 y1 per cell, as shares of the image. ` + "`models.Decode`" + ` makes detections of both.
- ` + "`config.pbtxt`" + ` has max_batch_size %d and, as parameters, slo_ms, family, variant, accuracy and seed.
- ` + "`profile.json`" + ` (from ` + "`downbeat profile`" + `) is of your host and not committed.

Made by ` + "`downbeat models train`" + ` (` + "`make models`" + `), seed %s. The same seed gives the same files on one
kind of processor. ` + "`downbeat models check`" + ` measures the accuracy again, ` + "`downbeat models render`" + `
writes sample pictures such as those in ` + "`testdata/`" + `.
`

// WriteReadme writes README.md from the models in dir.
func WriteReadme(dir string) error {
	var b strings.Builder
	fmt.Fprintf(&b, readmeHead, "accuracy")
	seed := "none"
	for _, r := range Recipes() {
		text, err := os.ReadFile(filepath.Join(dir, r.Name(), "config.pbtxt"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		c, err := repo.ParseConfig(filepath.Join(dir, r.Name(), "config.pbtxt"), text)
		if err != nil {
			return err
		}
		info, err := os.Stat(filepath.Join(dir, r.Name(), "1", "model.onnx"))
		if err != nil {
			return err
		}
		cost := r.Cost()
		seed = c.Params["seed"]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %.1f | %d | %d KiB |\n", r.Name(), tensors(c.Inputs), tensors(c.Outputs),
			c.Params["accuracy"], float64(cost.FLOP)/1e6, cost.Weights, (info.Size()+1023)/1024)
	}
	fmt.Fprintf(&b, readmeTail, heldOutCrops, heldOutStreets, cells*cells, BatchMax, seed)
	return repo.WriteFile(filepath.Join(dir, "README.md"), []byte(b.String()))
}

func tensors(list []repo.TensorConfig) string {
	var s []string
	for _, t := range list {
		s = append(s, t.Name+" "+strings.ReplaceAll(strings.Trim(fmt.Sprint(t.Shape), "[]"), " ", "×"))
	}
	return strings.Join(s, ", ")
}
