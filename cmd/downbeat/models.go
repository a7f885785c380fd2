//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"downbeat.dev/models"
	"downbeat.dev/models/scene"
)

// modelsCommand returns the commands that make and check the models in models/.
func modelsCommand() command {
	return command{name: "models", summary: "train, check and illustrate the models in models/: train, check, readme, render",
		run: func(ctx context.Context, args []string) error {
			return runNamed(ctx, "downbeat models", modelCommands(), args, func(w io.Writer) {
				fmt.Fprint(w, usageOf("downbeat models"))
				printCommands(w, modelCommands())
			})
		}}
}

func modelCommands() []command {
	return []command{
		{"train", "train the models from scratch on rendered scenes", trainModels},
		{"check", "compare the models' graphs with their configuration and measure their accuracy", checkModels},
		{"readme", "measure accuracy and latency of all models and write them to README.md of the repository", readmeModels},
		{"render", "write sample pictures of the rendered scenes", renderModels},
	}
}

// imagesMost is the largest number of held-out images.
const imagesMost = 1_000_000

func trainModels(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("downbeat models train", flag.ContinueOnError)
	o := models.Options{Report: func(line string) { fmt.Fprintln(os.Stderr, line) }}
	fs.StringVar(&o.Dir, "dir", "models", "model repository `directory` to write into")
	fs.StringVar(&o.Only, "only", "", "`models` to train, separated by commas (default all)")
	fs.BoolVar(&o.Exits, "exits", false, "train only the early exits of the models that are already in -dir")
	fs.Uint64Var(&o.Seed, "seed", 1, "seed of the data and the initial weights")
	fs.IntVar(&o.Parallel, "parallel", 2, "`number` of models to train at the same time, one core each")
	fs.Float64Var(&o.Effort, "effort", 1, "`factor` by which the number of training steps is multiplied")
	fs.StringVar(&o.Library, "ort", "", "ONNX Runtime library `file` (default $ORT_LIB, else the one that deploy/ort/fetch.sh fetched)")

	if err := parse(fs, args); err != nil {
		return err
	}
	if o.Parallel < 1 || o.Parallel > 64 {
		return usageErrorf("models train: -parallel %d: want 1 to 64", o.Parallel)
	}
	if err := o.Check(); err != nil {
		return usageErrorf("models train: %v", err)
	}
	return models.Make(ctx, o)
}

func checkModels(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("downbeat models check", flag.ContinueOnError)
	dir := fs.String("dir", "models", "model repository `directory`")
	images := fs.Int("images", 0, "`number` of held-out images per model; 0: as many as README.md used; -1: do not measure accuracy")
	library := fs.String("ort", "", "ONNX Runtime library `file` (default $ORT_LIB, else the one that deploy/ort/fetch.sh fetched)")
	if err := parse(fs, args); err != nil {
		return err
	}

	if *images < -1 || *images > imagesMost {
		return usageErrorf("models check: -images %d: want -1 to %d", *images, imagesMost)
	}
	return models.Check(ctx, os.Stdout, *dir, *images, *library)
}

func readmeModels(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("downbeat models readme", flag.ContinueOnError)
	dir := fs.String("dir", "models", "model repository `directory`")
	images := fs.Int("images", 0, "`number` of held-out images per model; 0: the usual number")
	library := fs.String("ort", "", "ONNX Runtime library `file` (default $ORT_LIB, else the one that deploy/ort/fetch.sh fetched)")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *images < 0 || *images > imagesMost {
		return usageErrorf("models readme: -images %d: want 0 to %d", *images, imagesMost)
	}
	return models.WriteReadme(ctx, *dir, *images, *library)
}

func renderModels(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("downbeat models render", flag.ContinueOnError)
	dir := fs.String("out", "out/scenes", "`directory` to write into")
	n := fs.Int("n", 8, "`number` of pictures per family")
	seed := fs.Uint64("seed", 1, "seed of the pictures")
	when := fs.String("conditions", "mixed", "light and `weather`: mixed, day or night")
	if err := parse(fs, args); err != nil {
		return err
	}

	if *n < 1 || *n > 10_000 {
		return usageErrorf("models render: -n %d: want 1 to 10000", *n)
	}

	// nil conditions mean mixed: each picture draws its own.
	var c *scene.Conditions
	switch *when {
	case "mixed":
	case "day", "night":
		v := map[string]scene.Conditions{"day": scene.Day(), "night": scene.Night()}[*when]
		c = &v
	default:
		return usageErrorf("models render: -conditions %q: want mixed, day or night", *when)
	}

	// List the written pictures even if one failed.
	paths, err := models.Render(ctx, *dir, *seed, *n, c)
	for _, p := range paths {
		fmt.Println(p)
	}
	return err
}
