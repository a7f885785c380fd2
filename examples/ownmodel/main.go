// Command ownmodel serves your own ONNX file: it creates a model repository for it, starts a system, and runs the
// model once on zeros. It needs ONNX Runtime: set ORT_LIB, or run "make ort" in the repository first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"downbeat.dev"
)

func main() {
	file := flag.String("onnx", "../../models/activity-s/1/model.onnx", "the model's file")
	slo := flag.Duration("slo", 100*time.Millisecond, "deadline of requests that name none")
	flag.Parse()
	if err := run(*file, *slo); err != nil {
		log.Fatal(err)
	}
}

func run(file string, slo time.Duration) error {
	dir, err := writeRepository(file, slo)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	// Start measures ℓ(b) of a model that this host has never measured, which takes some seconds.
	config := downbeat.Default()
	config.Models, config.Log = dir, os.Stderr
	system, err := downbeat.Start(context.Background(), config)
	if err != nil {
		return err
	}
	defer system.Close()

	client := system.Client()
	model := client.Model("mine", "")
	if model == nil || !model.Ready {
		return errors.New("the model is not served; the log says why")
	}
	for _, t := range model.Inputs {
		fmt.Printf("input %s: %s %v\n", t.Name, t.Datatype, t.Shape)
	}

	input, err := client.NewInput("mine")
	if err != nil {
		return err
	}
	defer input.Free()
	clear(input.Bytes())
	result, err := client.Infer(context.Background(), "mine", input)
	if err != nil {
		return err
	}
	for _, t := range model.Outputs {
		fmt.Printf("output %s: %s %v, % x…\n", t.Name, t.Datatype, t.Shape, result.Output(t.Name).Bytes()[:4])
	}
	return nil
}

// writeRepository creates a repository with one model, in Triton's layout. Downbeat reads everything that
// config.pbtxt leaves out, such as the tensors, from the ONNX file.
func writeRepository(file string, slo time.Duration) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "ownmodel-")
	if err != nil {
		return "", err
	}

	config := fmt.Sprintf("platform: \"onnxruntime_onnx\"\nmax_batch_size: 16\nparameters { key: \"slo_ms\" value { string_value: \"%d\" } }\n", slo.Milliseconds())
	err = errors.Join(os.MkdirAll(filepath.Join(dir, "mine", "1"), 0o755),
		os.WriteFile(filepath.Join(dir, "mine", "config.pbtxt"), []byte(config), 0o644),
		os.WriteFile(filepath.Join(dir, "mine", "1", "model.onnx"), text, 0o644))
	return dir, err
}
