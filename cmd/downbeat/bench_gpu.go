//go:build linux

package main

import (
	"context"
	"flag"
	"os"
	"strconv"
	"strings"

	"downbeat.dev/bench/gpu"
)

// benchGPU measures the layer executor on a GPU, or compares its results with ONNX Runtime's.
func benchGPU() command {
	return command{name: "gpu", summary: "measure the batch latency of the GPU executor, beside PyTorch and the hardware's lower bound; with -check, compare its results with ONNX Runtime's",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench gpu", flag.ContinueOnError)
			var o gpu.Options
			fs.BoolVar(&o.Check, "check", false, "compare every operator and model with ONNX Runtime instead of measuring")
			fs.BoolVar(&o.Small, "small", false, "with -check: only operators and small networks")
			fs.BoolVar(&o.Emulated, "emulated", false, "run on the emulated device, to try the command; the times mean nothing")
			fs.StringVar(&o.Library, "ort", "", "ONNX Runtime library `file` (default $ORT_LIB, else the one that deploy/ort/fetch.sh fetched)")
			fs.StringVar(&o.Models, "models", "", "with -check: `directory` whose .onnx files are checked too")
			fs.StringVar(&o.Python, "python", "python3", "`command` of a Python that has torch, for the column torch_us; empty: no comparison with PyTorch")
			fs.Uint64Var(&o.Seed, "seed", 1, "seed of the random inputs")
			fs.IntVar(&o.Rounds, "rounds", 100, "`number` of batches measured for each row")
			fs.StringVar(&o.Match, "match", "", "with -check: only cases whose name matches this regular `expression`")
			fs.BoolVar(&o.Tune, "tune", true, "time the alternatives for each step of a plan first and use the fastest")
			fs.StringVar(&o.Libraries, "libraries", "", "`directories` to search first for cuBLASLt and cuDNN, separated by colons; none: use neither library")
			fs.StringVar(&o.Lines, "lines", "", "`file` to which each row is also appended as a line of JSON")
			fs.BoolVar(&o.Layers, "layers", false, "also time each layer alone; -o json prints the times")
			precisions := fs.String("precisions", "fp32,fp16,bf16", "`precisions`, separated by commas: fp32, fp16, bf16")
			graphs := fs.String("graphs", "", "`graphs`, separated by commas: resnet50, mobilenet, bert-base, and resnet50-bytes, which measures the throughput of overlapping batches (default all)")
			batches := fs.String("batches", "1,2,4,8,16,32,64", "batch `sizes`, separated by commas")
			format := fs.String("o", "table", "output `format`: table or json")

			if err := parse(fs, args); err != nil {
				return err
			}
			if err := checkFormat(*format); err != nil {
				return err
			}
			if o.Rounds < 1 {
				return usageErrorf("bench gpu: -rounds %d: want at least 1", o.Rounds)
			}

			o.JSON = *format == "json"
			o.Precisions = strings.Split(*precisions, ",")
			if *graphs != "" {
				o.Graphs = strings.Split(*graphs, ",")
			}
			for _, s := range strings.Split(*batches, ",") {
				n, err := strconv.Atoi(s)
				if err != nil || n < 1 {
					return usageErrorf("bench gpu: -batches %q: want whole numbers above 0, such as 1,8", s)
				}
				o.Batches = append(o.Batches, n)
			}

			if err := o.Validate(); err != nil {
				return usageErrorf("bench gpu: %v", err)
			}
			return gpu.Command(ctx, o, os.Stdout)
		}}
}
