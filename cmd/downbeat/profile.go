//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"downbeat.dev/backend"
	"downbeat.dev/deploy"
)

// profileCommand measures models on this host.
func profileCommand() command {
	return command{name: "profile", summary: "measure the latency of models at every batch size on this host, and store it for the scheduler", run: runProfile}
}

func runProfile(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("downbeat profile", flag.ContinueOnError)

	// The arguments after the flags are models, which the default usage text does not mention.
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage: downbeat profile [flags] [MODEL...]\n\nIt measures the models (default: all that are not emulated) and stores the latency ℓ(b) of each batch size b\nbeside each version of a model.\n\n")
		fs.PrintDefaults()
	}

	o := backend.ProfileOptions{Out: os.Stdout}
	fs.StringVar(&o.Models, "models", "models", "model repository `directory`")
	fs.IntVar(&o.Rounds, "rounds", 40, "`number` of samples per batch size")
	fs.BoolVar(&o.GPU, "gpu", false, "measure on this host's first GPU; needs a binary built with the tag cuda")
	fs.IntVar(&o.Threads, "threads", 1, "`number` of threads of an executor on the processor")
	lanes := fs.String("lanes", "1", "`numbers` of equal parts of the device, separated by commas, 1 among them: with each, one part is measured while all run the same model; the most useful number is printed")
	fs.IntVar(&o.Core, "core", -1, "pin to this `core`; -1: do not pin")
	fs.Uint64Var(&o.Seed, "seed", 1, "seed of the order in which batch sizes are measured")
	fs.BoolVar(&o.Dry, "dry-run", false, "print the latencies and store nothing")

	if err := deploy.ParseFlags(fs, args); err != nil {
		return err
	}
	if o.Rounds < 1 || o.Rounds > 100_000 {
		return usageErrorf("profile: rounds: %d: want 1 to 100000", o.Rounds)
	}
	if o.Core < -1 {
		return usageErrorf("profile: core: %d: want a core's number, or -1 (do not pin)", o.Core)
	}

	var err error
	if o.Lanes, err = numberList(*lanes); err != nil {
		return fmt.Errorf("profile: lanes: %w", err)
	}
	o.Only = fs.Args()
	return backend.MeasureModels(ctx, o)
}

// numberList parses numbers separated by commas.
func numberList(text string) (all []int, err error) {
	for _, word := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil {
			return nil, deploy.UsageError(fmt.Sprintf("%q: want whole numbers separated by commas, such as 1,2,4", text))
		}
		all = append(all, n)
	}
	return all, nil
}
