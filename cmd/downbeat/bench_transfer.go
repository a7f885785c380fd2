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
	return command{name: "transfer", summary: "round trips and fetches of the data plane, beside plain C",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench transfer", flag.ContinueOnError)
			provider := fs.String("provider", "tcp,shm,local", "comma-separated: tcp, shm, local, verbs")
			op := fs.String("op", "echo,read,incast", "comma-separated: echo, read, incast")
			peers := fs.Int("peers", 8, "peers of the incast")
			size := fs.Int("bytes", 150<<10, "bytes per fetch")
			rounds := fs.Int("rounds", 10, "rounds, alternating with the reference")
			each := fs.Int("each", 300, "measurements per round")
			listen := fs.String("listen", "127.0.0.1", "address that the peers listen on")
			netns := fs.String("netns", "", "network namespace to run the peers in (needs root)")
			format := fs.String("o", "table", "output: table, json or csv")
			figure := fs.String("figure", "", "draw the incast by percentile (Symphony, figure 12) into this SVG file")
			spin := fs.Duration("spin", 0, "verbs: longest polling for a completion; perftest polls without end")
			serve := fs.Int("serve", 0, "internal: be the peers, until stdin ends")
			if err := parse(fs, args); err != nil {
				return err
			}
			if *peers < 1 || *peers > 64 || *size < 1 || *size > 64<<20 || *rounds < 1 || *each < 1 || !slices.Contains([]string{"table", "json", "csv"}, *format) {
				return fmt.Errorf("bench transfer: want 1 to 64 peers, 1 to 67108864 bytes, rounds and each of at least 1, -o table, json or csv")
			}
			if *serve > 0 {
				return transfer.Serve(os.Stdin, os.Stdout, *provider, *listen, *serve, *size)
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			rows, err := transfer.Run(ctx, transfer.Config{
				Providers: strings.Split(*provider, ","), Ops: strings.Split(*op, ","), Peers: *peers, Bytes: *size, Rounds: *rounds, Each: *each, Spin: *spin,
				Listen: *listen, NetNS: *netns, Child: []string{exe, "bench", "transfer"},
			}, os.Stderr)
			if err != nil {
				return err
			}
			if *figure != "" {
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
