package models

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/repo"
	"downbeat.dev/models/scene"
)

const readmeHead = `# Models

A Triton-compatible model repository of nine small networks and ten early exits, trained from scratch on street scenes
that ` + "`models/scene`" + ` renders. No data was downloaded, no Python ran.

| model | input (UINT8) | outputs (FP32) | accuracy | clear day | wet night | MFLOP | weights | KiB |
|---|---|---|---|---|---|---|---|---|
`

const readmeTail = `
Accuracy is the share of right classes on %d held-out crops; of a detector, the mean average precision
at IoU 0.5 on %d held-out streets, over all lights and weathers. "Wet night" is darker than anything seen
in training: what drift does to a model. MFLOP counts two per multiply-accumulate, for one image.

- **image**: bytes of the pixels, row by row, in the order red, green, blue. Scaling is part of the graph. The gateway also
  makes the image from a JPEG or a PNG (parameter picture).
- **scores** of a classifier: probabilities by label. Of a detector: %d cells × labels, objectness times
  class probability. Labels are in each model's ` + "`labels.txt`" + `, one per line.
- **boxes**: x0 y0 x1 y1 per cell, as shares of the image. ` + "`models.Decode`" + ` makes detections of both.
- ` + "`config.pbtxt`" + ` has max_batch_size %d and, as parameters, slo_ms, family, variant, accuracy, seed and picture.
- **early exits** (` + "`exit_of`, `exit_stage`" + `) run the first part of their model's file and a head of their own. The last two columns count
  both, but the first part is stored only once. The heads are trained behind the trained model, whose weights do not change.
- ` + "`profile.json`" + ` (from ` + "`downbeat profile`" + `) holds measurements of your host and is not committed.

Made by ` + "`make models`" + ` (` + "`downbeat models train -seed %s`" + `). The same seed gives the same files on one kind of
processor. ` + "`downbeat models check`" + ` measures the accuracy again, ` + "`downbeat models readme`" + ` writes this page,
` + "`downbeat models render`" + ` draws pictures such as those in ` + "`testdata/`" + `.
`

// WriteReadme measures the recipes' models in dir on n images (0: the usual number) and writes README.md.
func WriteReadme(ctx context.Context, dir string, n int, library string) error {
	r, err := repo.Open(dir)
	if err != nil {
		return err
	}

	var b strings.Builder
	b.WriteString(readmeHead)
	seed, rows := "1", 0

	for _, recipe := range Recipes() {
		for k := range len(recipe.Structure().Exits) + 1 {
			m, err := r.Find(recipe.exitOrName(k), "")
			if err != nil {
				continue // not made yet
			}

			row, err := recipe.tableRow(ctx, m, n, library)
			if err != nil {
				return err
			}

			b.WriteString(row)
			rows++
			seed = m.Config.Params["seed"]
		}
	}

	if rows == 0 {
		return fmt.Errorf("readme of %s: none of the models made here is in it", dir)
	}
	fmt.Fprintf(&b, readmeTail, heldOutCrops, heldOutStreets, cells*cells, BatchMax, seed)
	return repo.WriteFile(dir+"/README.md", []byte(b.String()))
}

// tableRow returns a model's row of the table.
func (r Recipe) tableRow(ctx context.Context, m *repo.Model, n int, library string) (string, error) {
	g, err := onnx.ReadPart(m)
	if err != nil {
		return "", err
	}

	seed, err := strconv.ParseUint(m.Config.Params["seed"], 10, 64)
	if err != nil {
		return "", fmt.Errorf("model %s: parameter seed: %w", m.Name, err)
	}

	// Day and night show each variant's loss under drift.
	day, night := scene.Day(), scene.Night()
	var measured [3]float64
	for i, c := range []*scene.Conditions{nil, &day, &night} {
		if measured[i], err = r.Evaluate(ctx, g.Model, Exam{Seed: seed, Images: n, Conditions: c, Library: library}); err != nil {
			return "", err
		}
	}

	cost := r.Cost()
	if m.ExitStage > 0 {
		cost = r.Structure().ExitNet(m.ExitStage).Cost()
	}
	return fmt.Sprintf("| %s | %s | %s | %.3f | %.3f | %.3f | %.1f | %d | %d |\n", m.Name, describeTensors(m.Config.Inputs), describeTensors(m.Config.Outputs),
		measured[0], measured[1], measured[2], float64(cost.FLOP)/1e6, cost.Weights, (len(g.Marshal())+1023)/1024), nil
}

func describeTensors(list []repo.TensorConfig) string {
	var s []string
	for _, t := range list {
		s = append(s, t.Name+" "+strings.ReplaceAll(strings.Trim(fmt.Sprint(t.Shape), "[]"), " ", "×"))
	}
	return strings.Join(s, ", ")
}
