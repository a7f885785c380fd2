package family

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/core/arrivals"
)

// Limits of a trace: its requests and its length.
const (
	requestsMax = 1 << 24
	traceMax    = 24 * time.Hour
)

// Trace is requests for families over time.
type Trace struct {
	Name     string
	Families []string
	SLO      []time.Duration    // by family, from its lines
	Arrivals []arrivals.Arrival // in order of time; Model is the index in Families
}

// Span returns the number of whole seconds that contain all arrivals.
func (t *Trace) Span() time.Duration {
	if len(t.Arrivals) == 0 {
		return 0
	}
	last := time.Duration(t.Arrivals[len(t.Arrivals)-1].At)
	return last.Truncate(time.Second) + time.Second
}

// ReadTrace reads a directory with a file FAMILY.txt per family. Each line is one request, `arrival_ms,1,slo_ms`, in
// order of arrival. Errors name the file, the line and the field.
func ReadTrace(dir fs.FS, name string) (*Trace, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}

	t := &Trace{Name: name}
	for _, e := range entries {
		family, ok := strings.CutSuffix(e.Name(), ".txt")
		if !ok || e.IsDir() {
			continue
		}
		if len(t.Families) == familiesMax {
			return nil, fmt.Errorf("more than %d families", familiesMax)
		}

		f, err := dir.Open(e.Name())
		if err != nil {
			return nil, err
		}
		err = t.readFamily(f, family)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
	}

	if len(t.Families) == 0 {
		return nil, errors.New("no file FAMILY.txt: want one per family")
	}
	t.sortArrivals()
	return t, nil
}

// sortArrivals sorts arrivals by time, and equal times by family.
func (t *Trace) sortArrivals() {
	slices.SortStableFunc(t.Arrivals, func(a, b arrivals.Arrival) int {
		switch {
		case a.At < b.At:
			return -1
		case a.At > b.At:
			return 1
		}
		// Equal times need a fixed order: the simulator's result depends on it.
		return int(a.Model - b.Model)
	})
}

// readFamily appends one family's requests.
func (t *Trace) readFamily(r io.Reader, family string) error {
	f, slo, last := int32(len(t.Families)), time.Duration(0), time.Duration(0)
	s := bufio.NewScanner(r)
	line := 0

	for s.Scan() {
		line++
		at, due, err := parseRequest(s.Text())
		if err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		if at < last {
			return fmt.Errorf("line %d: field arrival_ms = %v: want at least that of the line before, %v", line, ms(at), ms(last))
		}
		if slo != 0 && due != slo {
			return fmt.Errorf("line %d: field slo_ms = %v: want %v as on line 1", line, ms(due), ms(slo))
		}
		if len(t.Arrivals) == requestsMax {
			return fmt.Errorf("line %d: more than %d requests", line, requestsMax)
		}

		last, slo = at, due
		t.Arrivals = append(t.Arrivals, arrivals.Arrival{At: time.Duration(at), Model: f})
	}

	if err := s.Err(); err != nil {
		return fmt.Errorf("line %d: %w", line+1, err)
	}
	if line == 0 {
		return errors.New("line 1: no request, want one at least")
	}

	t.Families = append(t.Families, family)
	t.SLO = append(t.SLO, slo)
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// parseRequest reads `arrival_ms,1,slo_ms`.
func parseRequest(text string) (at, slo time.Duration, err error) {
	fields := strings.Split(strings.TrimSpace(text), ",")
	if len(fields) != 3 {
		return 0, 0, fmt.Errorf("%q has %d fields: want arrival_ms,1,slo_ms", text, len(fields))
	}
	if fields[1] != "1" {
		return 0, 0, fmt.Errorf("field requests = %q: want 1", fields[1])
	}

	x, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || !(x >= 0 && x <= float64(traceMax/time.Millisecond)) {
		return 0, 0, fmt.Errorf("field arrival_ms = %q: want 0 to %d", fields[0], traceMax/time.Millisecond)
	}
	y, err := strconv.ParseFloat(fields[2], 64)
	if err != nil || !(y >= 0.001 && y <= float64(time.Hour/time.Millisecond)) {
		return 0, 0, fmt.Errorf("field slo_ms = %q: want 0.001 to %d", fields[2], time.Hour/time.Millisecond)
	}
	return time.Duration(x * 1e6), time.Duration(y * 1e6), nil
}
