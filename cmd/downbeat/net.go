//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/rdma/kernel"
)

// netCommand measures network and run-queue delay with the kernel's own counters, to explain long tails.
func netCommand() command {
	return command{name: "net", summary: "measure network and run-queue delays in the kernel, with eBPF; needs root",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat net", flag.ContinueOnError)
			ports := fs.String("ports", "", "TCP `ports`, separated by commas; only connections opened from now on count")
			pids := fs.String("pids", "", "process `ids`, separated by commas; empty: all processes named downbeat")
			length := fs.Duration("for", 10*time.Second, "how long to measure")
			format := fs.String("o", "table", "output `format`: table or json")
			if err := parse(fs, args); err != nil {
				return err
			}

			if err := checkFormat(*format); err != nil {
				return err
			}
			if *length <= 0 || *length > time.Hour {
				return usageErrorf("net: -for %v: want more than 0 and up to 1h", *length)
			}

			watched, err := parseNumbers(*pids, 1<<22)
			if err != nil {
				return usageErrorf("net: -pids: %v", err)
			}

			if len(watched) == 0 {
				watched = kernel.Processes("downbeat")
			}

			list, err := parseNumbers(*ports, 1<<16-1)
			if err != nil {
				return usageErrorf("net: -ports: %v", err)
			}
			narrow := make([]uint16, len(list))
			for i, p := range list {
				narrow[i] = uint16(p)
			}

			r, err := measureDelays(ctx, narrow, watched, *length)
			if err != nil {
				return err
			}
			if *format == "json" {
				return json.NewEncoder(os.Stdout).Encode(r)
			}

			printDelays(os.Stdout, r)
			return nil
		}}
}

// measureDelays watches ports and processes for some time.
func measureDelays(ctx context.Context, ports []uint16, processes []int, length time.Duration) (r kernel.Report, err error) {
	w, err := kernel.Open(ports, processes)

	// Without root, the error names another way to see delays.
	if errors.Is(err, kernel.ErrNotPermitted) {
		return r, fmt.Errorf("%w (without it, use the delays that frontends and backends measure with their own echoes)", err)
	}
	if err != nil {
		return r, err
	}
	defer w.Close()

	// The kernel counts; this process only waits.
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
	return w.Read()
}

func printDelays(w io.Writer, r kernel.Report) {
	fmt.Fprintf(w, "%-32s %10s %10s %10s %10s\n", "", "count", "p50", "p99", "p99.9")
	fmt.Fprintf(w, "%-32s %10d %10v %10v %10v\n", "round trips of TCP", r.RTT.Count, r.RTT.P50, r.RTT.P99, r.RTT.P999)
	fmt.Fprintf(w, "%-32s %10d %10v %10v %10v\n", "threads' waits for a processor", r.Wait.Count, r.Wait.P50, r.Wait.P99, r.Wait.P999)
	fmt.Fprintf(w, "%-32s %10d\n", "retransmissions", r.Retransmits)
	fmt.Fprintln(w, r.Verdict())
}

// parseNumbers parses a comma-separated list of numbers from 1 to most.
func parseNumbers(s string, most int) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("%q: want numbers from 1 to %d", part, most)
		}
		out = append(out, n)
	}
	return out, nil
}
