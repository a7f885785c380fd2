package profile

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Entry is a named model with its linear profile and latency SLO, as a row of a zoo.
type Entry struct {
	Name        string
	Alpha, Beta time.Duration
	SLO         time.Duration
}

// Profile builds the entry's ℓ(b). Its maximum is the largest batch that fits in the SLO. An SLO shorter than ℓ(1) is
// refused.
func (e Entry) Profile() (*Profile, error) {
	if e.Alpha <= 0 {
		return nil, fmt.Errorf("profile: model %s: alpha = %v, want more than 0", e.Name, e.Alpha)
	}
	if e.SLO < e.Alpha+e.Beta {
		return nil, fmt.Errorf("profile: model %s: SLO %v is shorter than ℓ(1) = %v", e.Name, e.SLO, e.Alpha+e.Beta)
	}

	// A batch of (SLO − β)/α requests takes the whole SLO.
	p, err := Linear(e.Alpha, e.Beta, min(BatchLimit, int((e.SLO-e.Beta)/e.Alpha)))
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", e.Name, err)
	}
	return p, nil
}

// Ratio returns β/α, the strength of the batching effect.
func (e Entry) Ratio() float64 { return float64(e.Beta) / float64(e.Alpha) }

// entriesMax bounds the memory that a file can claim.
const entriesMax = 1 << 20

var csvHeader = []string{"model", "alpha_ms", "beta_ms", "slo_ms"}

// ReadCSV reads rows `model,alpha_ms,beta_ms,slo_ms` after a header of these names. Errors name
// the line, the field and the value. Duplicate names are refused.
func ReadCSV(r io.Reader) ([]Entry, error) {
	c := csv.NewReader(r)
	c.FieldsPerRecord = len(csvHeader)
	c.TrimLeadingSpace = true

	head, err := c.Read()
	if err == io.EOF {
		return nil, fmt.Errorf("profile: nothing there, want a header %s", strings.Join(csvHeader, ","))
	}
	if err != nil {
		return nil, fmt.Errorf("profile: read header: %w", err)
	}

	for i, want := range csvHeader {
		// Spreadsheets write a byte order mark before the first field.
		if got := strings.TrimSpace(strings.TrimPrefix(head[i], "\ufeff")); got != want {
			return nil, fmt.Errorf("profile: header field %d is %q, want %q", i+1, got, want)
		}
	}

	seen := make(map[string]bool)
	var out []Entry
	for {
		rec, err := c.Read()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}

		// A quoted field may span lines, so the reader says where the record began.
		line, _ := c.FieldPos(0)
		e, err := parseEntry(rec)
		if err != nil {
			return nil, fmt.Errorf("profile: line %d: %w", line, err)
		}

		if seen[e.Name] {
			return nil, fmt.Errorf("profile: line %d: model %q appears twice", line, e.Name)
		}
		if len(out) == entriesMax {
			return nil, fmt.Errorf("profile: more than %d models", entriesMax)
		}

		seen[e.Name] = true
		out = append(out, e)
	}
}

func parseEntry(rec []string) (Entry, error) {
	e := Entry{Name: strings.TrimSpace(rec[0])}
	if e.Name == "" {
		return e, fmt.Errorf("model is empty")
	}

	for i, to := range []*time.Duration{&e.Alpha, &e.Beta, &e.SLO} {
		name, text := csvHeader[i+1], strings.TrimSpace(rec[i+1])
		d, err := parseMilliseconds(text)
		if err != nil {
			return e, fmt.Errorf("model %s: %s = %q: %w", e.Name, name, text, err)
		}
		*to = d
	}

	// An entry that no batch can serve is refused here, where its line is known.
	if _, err := e.Profile(); err != nil {
		return e, err
	}
	return e, nil
}

func parseMilliseconds(text string) (time.Duration, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("not a number")
	}
	if math.IsNaN(v) || v < 0 || v > float64(LatencyLimit/time.Millisecond) {
		return 0, fmt.Errorf("want 0 to %v milliseconds", int64(LatencyLimit/time.Millisecond))
	}
	return time.Duration(math.Round(v * 1e6)), nil
}
