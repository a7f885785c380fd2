//go:build linux

package main

import (
	"flag"
	"slices"
	"strconv"
	"strings"

	"downbeat.dev"
	"downbeat.dev/backend"
	"downbeat.dev/backend/emu"
)

// backendCommand runs a backend alone, connected to a scheduler over TCP.
func backendCommand() command {
	var name, subCluster, cores, faults string
	return runCommand("backend", "run a backend for a scheduler: the executors of this host", "", downbeat.Backend,
		func(fs *flag.FlagSet) {
			fs.StringVar(&name, "name", "", "`name` of this backend (default the host's name)")
			fs.StringVar(&subCluster, "sub-cluster", "", "`name` of the sub-cluster that this backend belongs to; empty: GPUs of one kind that offer the same models form a sub-cluster")
			fs.StringVar(&cores, "cores", "", "pin one executor to each core of this `list`, such as 2,3, instead of -executors")
			fs.StringVar(&faults, "fault", "", "with -emulate: a `list` of faults to inject, each GPU:FAULT@BATCHES, such as 0:lost@1000: GPU 0 is lost after 1000 batches; FAULT is alloc, fail, hang, lost, slow or sticky")
		},
		func(c *downbeat.Config) error {
			list, err := coreList(cores)
			if err != nil {
				return err
			}

			// The backend parses the faults itself; here a wrong one is found before anything starts.
			if _, err := emu.ParseFaults(faults, c.Emulate); err != nil {
				return usageErrorf("%v", err)
			}

			c.TuneBackend = func(o *backend.Options) { o.Name, o.SubCluster, o.Cores, o.Faults = name, subCluster, list, faults }
			return nil
		})
}

func coreList(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var cores []int

	for _, word := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil {
			return nil, usageErrorf("cores: %q: want numbers separated by commas, such as 2,3", text)
		}
		if slices.Contains(cores, n) {
			return nil, usageErrorf("cores: %q: core %d is named twice, and two executors on one core halve each other", text, n)
		}
		cores = append(cores, n)
	}
	return cores, nil
}
