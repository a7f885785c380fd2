package goodput

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/core/arrivals"
)

// checkDistinct refuses to overwrite one of the other files, under whatever name, and to write to standard output,
// which gets the summary.
func (r Replay) checkDistinct() error {
	names := []string{"arrivals", "profiles", "batches", "outcomes"}
	paths := []string{r.Arrivals, r.Profiles, r.Batches, r.Outcomes}
	if r.Arrivals == stdin && r.Profiles == stdin {
		return fmt.Errorf("arrivals and profiles = %q: want one of them from standard input, the other from a file", stdin)
	}

	// The last two are written.
	for i := 2; i < len(paths); i++ {
		if paths[i] == stdin {
			return fmt.Errorf("%s = %q: want the name of a file", names[i], stdin)
		}
		for k := range i {
			if sameFile(paths[i], paths[k]) {
				return fmt.Errorf("%s = %q: want another file than for %s", names[i], paths[i], names[k])
			}
		}
	}
	return nil
}

// sameFile reports whether two names are the same file. Something other than a regular file, such as a null device,
// may be written to twice.
func sameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	ia, err := os.Stat(a)
	if err == nil && !ia.Mode().IsRegular() {
		return false
	}
	ib, errB := os.Stat(b)
	if err == nil && errB == nil {
		return os.SameFile(ia, ib)
	}

	// At least one of them does not exist yet, so compare the names.
	a, err = filepath.Abs(a)
	b, errB = filepath.Abs(b)
	return err == nil && errB == nil && a == b
}

// stdin is the file name of standard input.
const stdin = "-"

// readFile reads a file, or standard input; errors name it.
func readFile(name string, read func(io.Reader) error) error {
	if name == stdin {
		return readFrom("standard input", os.Stdin, read)
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return readFrom(name, f, read)
}

func readFrom(name string, r io.Reader, read func(io.Reader) error) error {
	if err := read(r); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readArrivals parses lines `arrival_us,model`.
func readArrivals(r io.Reader, index map[string]int32) ([]arrivals.Arrival, error) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), lineMax)
	var out []arrivals.Arrival
	n := 0

	for ; s.Scan(); n++ {
		text := strings.TrimSpace(s.Text())
		if n == 0 {
			// Spreadsheets begin a file with a byte order mark.
			text = strings.TrimPrefix(text, "\ufeff")
			if text == "arrival_us,model" {
				continue
			}
		}

		a, err := parseArrival(text, index)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}

		// The simulator replays arrivals in the order of the file.
		if k := len(out); k > 0 && a.At < out[k-1].At {
			return nil, fmt.Errorf("line %d: arrival_us = %q: want lines in order of time, the line before has %g", n+1, strings.SplitN(text, ",", 2)[0], float64(out[k-1].At)/1e3)
		}
		if len(out) == arrivalsMax {
			return nil, fmt.Errorf("line %d: want at most %d arrivals", n+1, arrivalsMax)
		}

		out = append(out, a)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	return out, nil
}

// parseArrival parses one line.
func parseArrival(text string, index map[string]int32) (arrivals.Arrival, error) {
	fields := strings.Split(text, ",")
	if len(fields) != 2 {
		return arrivals.Arrival{}, fmt.Errorf("%q has %d fields, want 2: arrival_us,model", text, len(fields))
	}

	at, name := strings.TrimSpace(fields[0]), strings.TrimSpace(fields[1])
	us, err := strconv.ParseFloat(at, 64)
	if err != nil || math.IsNaN(us) || us < 0 || us > arrivalMaxUS {
		return arrivals.Arrival{}, fmt.Errorf("arrival_us = %q: want microseconds from 0 to %.0f", at, float64(arrivalMaxUS))
	}

	m, ok := index[name]
	if !ok {
		return arrivals.Arrival{}, fmt.Errorf("model = %q: want a model of the profiles: %s", name, modelNames(index))
	}
	return arrivals.Arrival{At: time.Duration(math.Round(us * 1e3)), Model: m}, nil
}

// modelNames lists some of the models, in the order of the file.
func modelNames(index map[string]int32) string {
	names := make([]string, min(len(index), modelsListMax))
	for name, i := range index {
		if int(i) < len(names) {
			names[i] = name
		}
	}
	if len(index) > len(names) {
		names = append(names, fmt.Sprintf("and %d more", len(index)-len(names)))
	}
	return strings.Join(names, ", ")
}

// quoteField writes a name as a CSV field.
func quoteField(name string) string {
	if strings.ContainsAny(name, "\",\n\r") {
		return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	}
	return name
}
