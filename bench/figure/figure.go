// Package figure writes figures of papers: the numbers as CSV, the picture as SVG, the paper's claims beside our
// results, and the page that lists all figures. It measures nothing.
package figure

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"downbeat.dev/bench/chart"
)

// Drawing is a figure: its numbers under a header, its picture, and its claims.
type Drawing struct {
	Header  []string
	Records [][]string
	Panels  []chart.Panel // none: no picture
	Claims  []Claim
}

// Claim is a published result beside ours.
type Claim struct {
	What, Published, Ours string
	Verdict               Verdict
	Why                   string // reason for any verdict other than Holds; may be empty
}

// Verdict says whether a published result was reproduced.
type Verdict string

// The verdicts.
const (
	Holds    Verdict = "holds"
	Differs  Verdict = "differs"
	Beside   Verdict = "beside"    // ours has other inputs and is only shown beside the paper's: it neither confirms nor refutes it
	NoNumber Verdict = "no number" // the paper prints none, only a direction or a curve
)

// Judge returns Holds or Differs.
func Judge(holds bool) Verdict {
	if holds {
		return Holds
	}
	return Differs
}

// Add appends a record; floats keep six decimals.
func (d *Drawing) Add(fields ...any) {
	var record []string
	for _, f := range fields {
		if x, ok := f.(float64); ok {
			record = append(record, Number(x))
		} else {
			record = append(record, fmt.Sprint(f))
		}
	}
	d.Records = append(d.Records, record)
}

// Number prints a number with at most six decimals.
func Number(x float64) string {
	// Round first, so that the last digits of a sum do not fill a CSV.
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', 6, 64), 64)
	return strconv.FormatFloat(rounded, 'g', -1, 64)
}

// judged returns the claims without the reasons of those that hold: a figure states its reason before the verdict is
// known.
func (d *Drawing) judged() []Claim {
	out := slices.Clone(d.Claims)
	for i := range out {
		if out[i].Verdict == Holds {
			out[i].Why = ""
		}
	}
	return out
}

// Write writes DIR/ID.csv, DIR/ID.svg if there are panels, and replaces the figure's claims in DIR/claims.csv. It
// creates the directory.
func (d *Drawing) Write(dir, id string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := writeTable(filepath.Join(dir, id+".csv"), append([][]string{d.Header}, d.Records...)); err != nil {
		return err
	}

	if len(d.Claims) > 0 {
		if err := replaceClaims(dir, id, d.judged()); err != nil {
			return err
		}
	}

	// A table has no picture.
	if len(d.Panels) == 0 {
		return nil
	}

	picture, err := os.Create(filepath.Join(dir, id+".svg"))
	if err != nil {
		return err
	}
	return errors.Join(chart.Draw(picture, d.Panels), picture.Close())
}

func writeTable(path string, records [][]string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}

	c := csv.NewWriter(f)
	return errors.Join(c.WriteAll(records), c.Error(), f.Close())
}
