package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"downbeat.dev/bench/median"
)

// ops are the measured operations per provider, with the references' names for them.
var ops = map[string][]struct {
	name string
	refs []string
}{
	"tcp":   {{"echo", []string{"echo"}}, {"read", nil}, {"incast", []string{"incast"}}},
	"shm":   {{"echo", nil}, {"read", []string{"fetch"}}, {"incast", []string{"incast"}}},
	"local": {{"echo", nil}, {"read", []string{"fetch"}}, {"incast", []string{"incast"}}},
	"verbs": {{"echo", nil}, {"read", []string{"read", entryRead}}, {"incast", []string{"incast"}}},
}

// Run measures every provider and returns its rows in order. notes gets a line for everything that was skipped.
func Run(ctx context.Context, c Config, notes io.Writer) ([]Row, error) {
	dir, err := os.MkdirTemp("", "downbeat-transfer-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	// Compile the reference here, with this host's compiler.
	bin, err := buildReference(ctx, dir)
	if errors.Is(err, errNoReference) {
		fmt.Fprintln(notes, "transfer:", err)
	} else if err != nil {
		return nil, err
	}

	var rows []Row
	for _, provider := range c.Providers {
		if _, known := ops[provider]; !known {
			return nil, fmt.Errorf("provider %q: there are tcp, shm, local, verbs", provider)
		}

		// The stages have their own nodes, in this process.
		measure := c.measureProvider
		if slices.Equal(c.Ops, []string{Stages}) {
			measure = c.measureStages
		}
		got, err := measure(ctx, bin, provider)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", provider, err)
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

// measureProvider runs one provider's ops, each in rounds that alternate with its reference.
func (c Config) measureProvider(ctx context.Context, bin, provider string) ([]Row, error) {
	peers, err := startPeers(ctx, c, provider)
	if err != nil {
		return nil, err
	}
	defer peers.stop()

	p, err := newProbe(ctx, c, provider, peers.ends)
	if err != nil {
		return nil, err
	}
	defer p.closeProbe()

	ref, err := startReference(ctx, c, bin, provider)
	if err == nil {
		defer ref.closeReference()
	} else if !errors.Is(err, errNoReference) {
		return nil, err
	}

	var rows []Row
	for _, op := range ops[provider] {
		if len(c.Ops) > 0 && !slices.Contains(c.Ops, op.name) {
			continue
		}
		got, err := c.alternateOp(p, ref, Row{Provider: provider, Op: op.name}, op.refs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op.name, err)
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

// alternateOp measures an op in rounds with its references, and makes a row with each.
func (c Config) alternateOp(p *probe, ref reference, row Row, refs []string) ([]Row, error) {
	row.Bytes, row.Peers = c.Bytes, 1
	if row.Op == "echo" {
		row.Bytes = echoBytes
	}
	if row.Op == "incast" {
		row.Peers = c.Peers
	}

	if ref == nil {
		refs = nil
	}

	// By round, and of the references by reference and round.
	var ours [][]int64
	theirs := make([][][]int64, len(refs))

	// Ours and the references alternate within a round, so that a disturbance of the machine affects all of them.
	for round := range c.Rounds + 1 {
		got, err := p.measureCalls(row.Op, c.Each, nil)
		if err != nil {
			return nil, err
		}
		if round > 0 { // the first is a warm-up
			ours = append(ours, got)
		}

		for i, op := range refs {
			got, err := ref.measureRounds(op, c.Each, nil)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				theirs[i] = append(theirs[i], got)
			}
		}
	}

	row.P50, row.P99, row.P999, row.P9999 = percentilesOf(slices.Concat(ours...))
	if len(refs) == 0 {
		return []Row{row}, nil
	}

	// Each reference makes a row of its own, with the same values of ours.
	var rows []Row
	for i, op := range refs {
		r := row
		r.Reference = ref.title(op)
		r.compareWith(ours, theirs[i])
		rows = append(rows, r)
	}
	return rows, nil
}

// compareWith sets the reference's values.
func (r *Row) compareWith(ours, theirs [][]int64) {
	r.RefP50, r.RefP99, r.RefP999, r.RefP9999 = percentilesOf(slices.Concat(theirs...))
	r.RatioP50 = float64(r.P50) / float64(r.RefP50)
	r.RatioP99 = float64(r.P99) / float64(r.RefP99)

	// Compute the ratio of each round separately: a slow phase of the machine affects both sides of it.
	var p50, p99 []float64
	for i := range ours {
		a50, a99, _, _ := percentilesOf(ours[i])
		b50, b99, _, _ := percentilesOf(theirs[i])
		p50, p99 = append(p50, float64(a50)/float64(b50)), append(p99, float64(a99)/float64(b99))
	}
	r.RoundP50, r.RoundP99 = median.Of(p50), median.Of(p99)
}

func percentilesOf(v []int64) (p50, p99, p999, p9999 int64) {
	p := median.Percentiles(v, 50, 99, 99.9, 99.99)
	return p[0], p[1], p[2], p[3]
}

// WriteJSON prints the rows as a JSON array.
func WriteJSON(w io.Writer, rows []Row) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(rows)
}

// WriteTable prints the rows for people.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "provider\top\tbytes\tpeers\tp50 µs\tp99 µs\treference\tp50 µs\tp99 µs\tratio p50\tratio p99\tby round p50\tp99\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%.1f\t%.1f\t%s\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", r.Provider, r.Op, r.Bytes, r.Peers,
			float64(r.P50)/1e3, float64(r.P99)/1e3, r.Reference, float64(r.RefP50)/1e3, float64(r.RefP99)/1e3, r.RatioP50, r.RatioP99, r.RoundP50, r.RoundP99)
	}
	return t.Flush()
}
