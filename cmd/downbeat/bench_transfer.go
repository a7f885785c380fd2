//go:build linux

package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"downbeat.dev/bench/transfer"
)

// benchTransfer measures the data plane beside plain C.
func benchTransfer() command {
	return command{name: "transfer", summary: "measure round trips and fetches of the data plane, beside plain C",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench transfer", flag.ContinueOnError)
			provider := fs.String("provider", "tcp,shm,local", "data plane `providers`, separated by commas: tcp, shm, local (within the process), verbs")
			op := fs.String("op", "echo,read,incast", "`operations`, separated by commas: echo (a round trip), read (one fetch), incast (fetches from all peers); or stages alone (one backend reads the result that another holds)")
			peers := fs.Int("peers", 8, "`number` of peers of the incast")
			size := fs.Int("bytes", 150<<10, "size of a fetch, in `bytes`")
			rounds := fs.Int("rounds", 10, "`number` of rounds; they alternate with the plain C reference's")
			each := fs.Int("each", 300, "`number` of measurements per round")
			listen := fs.String("listen", "127.0.0.1", "`address` that the peers listen on")
			netns := fs.String("netns", "", "network `namespace` to run the peers in; needs root")
			format := fs.String("o", "table", "output `format`: table, json or csv")
			figure := fs.String("figure", "", "SVG `file` for the latencies of the incast by percentile, as Symphony's figure 12; empty: none")
			spin := fs.Duration("spin", 0, "verbs: longest polling for a completion before waiting for its event; 0: 200µs; the reference, perftest, polls without limit")
			serve := fs.Int("serve", 0, "internal: be the peers, until stdin ends")

			if err := parse(fs, args); err != nil {
				return err
			}

			c := transfer.Config{
				Providers: strings.Split(*provider, ","), Ops: strings.Split(*op, ","), Peers: *peers, Bytes: *size, Rounds: *rounds, Each: *each, Spin: *spin,
				Listen: *listen, NetNS: *netns,
			}
			if err := checkTransfer(c, *format, *figure); err != nil {
				return err
			}

			// A child of this command serves as the peers, in another process or network namespace.
			if *serve > 0 {
				return transfer.Serve(os.Stdin, os.Stdout, *provider, *listen, *serve, *size)
			}

			exe, err := os.Executable()
			if err != nil {
				return err
			}
			c.Child = []string{exe, "bench", "transfer"}

			rows, err := transfer.Run(ctx, c, os.Stderr)
			if err != nil {
				return err
			}

			if *figure != "" {
				// Draw into memory first, so that a failed figure leaves the old file.
				var svg bytes.Buffer
				if err := transfer.WriteFigure(&svg, rows); err != nil {
					return err
				}
				if err := os.WriteFile(*figure, svg.Bytes(), 0o644); err != nil {
					return err
				}
			}

			write := map[string]func(io.Writer, []transfer.Row) error{
				"table": transfer.WriteTable, "json": transfer.WriteJSON, "csv": transfer.WriteCSV}
			return write[*format](os.Stdout, rows)
		}}
}

// checkTransfer rejects impossible combinations of flags before minutes of measuring.
func checkTransfer(c transfer.Config, format, figure string) error {
	for _, list := range []struct {
		flag   string
		values []string
		want   []string
	}{
		{"provider", c.Providers, []string{"tcp", "shm", "local", "verbs"}},
		{"op", c.Ops, []string{"echo", "read", "incast", transfer.Stages}},
		{"o", []string{format}, []string{"table", "json", "csv"}},
	} {
		for _, v := range list.values {
			if !slices.Contains(list.want, v) {
				return usageErrorf("-%s %q: want %s", list.flag, v, strings.Join(list.want, ", "))
			}
		}
	}

	for _, number := range []struct {
		flag        string
		value, most int
	}{{"peers", c.Peers, 64}, {"bytes", c.Bytes, 64 << 20}, {"rounds", c.Rounds, 1e6}, {"each", c.Each, 1e6}} {
		if number.value < 1 || number.value > number.most {
			return usageErrorf("-%s %d: want 1 to %d", number.flag, number.value, number.most)
		}
	}

	if len(c.Ops) > 1 && slices.Contains(c.Ops, transfer.Stages) {
		return usageErrorf("-op %s: want %s alone", strings.Join(c.Ops, ","), transfer.Stages)
	}
	if c.Spin < 0 {
		return usageErrorf("-spin %v: want 0 or more", c.Spin)
	}
	if figure == "" {
		return nil
	}

	if !slices.Contains(c.Ops, "incast") {
		return usageErrorf("-figure %s: the figure shows the incast: want incast among -op", figure)
	}

	// Fail before minutes of work, not after.
	if err := checkWritable(figure); err != nil {
		return fmt.Errorf("-figure: %w", err)
	}
	return nil
}
