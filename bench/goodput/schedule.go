package goodput

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// Limits on the memory that files can take.
const (
	arrivalsMax   = 100 << 20       // requests
	arrivalMaxUS  = 365 * 24 * 36e8 // a year
	scheduleGPUs  = 100_000
	lineMax       = 64 << 10
	modelsListMax = 8 // names in an error
)

// Replay is a workload from files, run once in virtual time.
type Replay struct {
	Arrivals, Profiles string // files
	GPUs               int
	Ctrl, Data         sim.Duration
	Policy             Policy
	Batches, Outcomes  string // files to write
}

// Run reads the workload, runs it, writes both files and prints a summary. Arrivals are lines `arrival_us,model` in
// order of time (microseconds, fractions allowed; one header line of these names may come first), profiles lines
// `model,alpha_ms,beta_ms,slo_ms` after a header. Batches are written as
// `batch,gpu,model,size,start_ns,end_ns,requests` (requests: zero-based arrival line numbers, not counting the
// header, joined by ';'), outcomes as `request,outcome,time_ns`, both with a header. Errors name the file, the line,
// the field and the value.
func (r Replay) Run(w io.Writer) error {
	if r.GPUs < 1 || r.GPUs > scheduleGPUs {
		return fmt.Errorf("gpus = %d: want 1 to %d", r.GPUs, scheduleGPUs)
	}
	if r.Ctrl < 0 || r.Data < 0 || r.Ctrl > 3600e9 || r.Data > 3600e9 {
		return fmt.Errorf("ctrl = %d ns, data = %d ns: want 0 to an hour", r.Ctrl, r.Data)
	}

	// Compare the files before opening any for writing, so that no input is truncated.
	if err := r.checkDistinct(); err != nil {
		return err
	}

	world := &sim.World{GPUs: r.GPUs, Ctrl: r.Ctrl, Data: r.Data}
	index := make(map[string]int32)

	// Read the profiles first: arrivals name their models.
	err := readFile(r.Profiles, func(f io.Reader) error {
		entries, err := profile.ReadCSV(f)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return fmt.Errorf("no models, want at least one row after the header")
		}
		for i, e := range entries {
			p, err := e.Profile()
			if err != nil {
				return err
			}
			index[e.Name] = int32(i)
			world.Models = append(world.Models, sim.Model{Name: e.Name, Profile: p, SLO: sim.Duration(e.SLO)})
		}
		return nil
	})
	if err != nil {
		return err
	}

	err = readFile(r.Arrivals, func(f io.Reader) (err error) {
		world.Arrivals, err = readArrivals(f, index)
		return err
	})
	if err != nil {
		return err
	}

	if err := r.runWorld(world); err != nil {
		return err
	}
	return r.printSummary(w, world)
}

// checkDistinct refuses to overwrite one of the other files, under whatever name, and to write to standard output,
// which gets the summary.
func (r Replay) checkDistinct() error {
	names := []string{"arrivals", "profiles", "batches", "outcomes"}
	paths := []string{r.Arrivals, r.Profiles, r.Batches, r.Outcomes}
	if r.Arrivals == stdin && r.Profiles == stdin {
		return fmt.Errorf("arrivals and profiles = %q: want one of them from standard input, the other from a file", stdin)
	}
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

// runWorld drives the world and writes both files.
func (r Replay) runWorld(world *sim.World) (err error) {
	batches, err := os.Create(r.Batches)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, batches.Close()) }()
	outcomes, err := os.Create(r.Outcomes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outcomes.Close()) }()

	b, o := bufio.NewWriterSize(batches, 1<<20), bufio.NewWriterSize(outcomes, 1<<20)
	b.WriteString("batch,gpu,model,size,start_ns,end_ns,requests\n")
	o.WriteString("request,outcome,time_ns\n")

	n := 0
	// Use one buffer for all lines: a workload may have a hundred million requests.
	var buf []byte
	world.Trace = func(gpu, model int32, start, finish sim.Time, requests []int32) {
		buf = fmt.Appendf(buf[:0], "%d,%d,%s,%d,%d,%d,", n, gpu, quoteField(world.Models[model].Name), len(requests), start, finish)
		for i, id := range requests {
			if i > 0 {
				buf = append(buf, ';')
			}
			buf = strconv.AppendInt(buf, int64(id), 10)
		}
		b.Write(append(buf, '\n'))
		n++
	}

	// Outcomes come in order of time but are written by request, so keep them until the end.
	how, when := make([]sim.Outcome, len(world.Arrivals)), make([]sim.Time, len(world.Arrivals))
	world.Ended = func(id int32, out sim.Outcome, at sim.Time) { how[id], when[id] = out, at }

	world.Run(r.Policy.New(world))
	for id := range how {
		fmt.Fprintf(o, "%d,%s,%d\n", id, how[id], when[id])
	}
	return errors.Join(b.Flush(), o.Flush()) // a failed write stays with its Writer until Flush
}

// quoteField writes a name as a CSV field.
func quoteField(name string) string {
	if strings.ContainsAny(name, "\",\n\r") {
		return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	}
	return name
}

// printSummary prints one row per model with requests, and a total.
func (r Replay) printSummary(w io.Writer, world *sim.World) error {
	res := &world.Result
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "model\trequests\tserved in time\tbad %\t")

	total, bad := 0, 0
	for m, n := range res.Total {
		if n > 0 {
			fmt.Fprintf(t, "%s\t%d\t%d\t%.3f\t\n", world.Models[m].Name, n, n-res.Bad[m], 100*float64(res.Bad[m])/float64(n))
		}
		total, bad = total+n, bad+res.Bad[m]
	}
	fmt.Fprintf(t, "all\t%d\t%d\t%.3f\t\n", total, total-bad, 100*float64(bad)/float64(max(1, total)))
	if err := t.Flush(); err != nil {
		return err
	}

	ran := 0
	for _, n := range res.SizeSum {
		ran += n
	}
	_, err := fmt.Fprintf(w, "%d batches of %.1f on %d GPUs, busy %.3f of %.3f s\n", res.Batches,
		float64(ran)/float64(max(1, res.Batches)), r.GPUs, float64(res.Busy)/float64(max(1, res.End))/float64(r.GPUs), float64(res.End)/1e9)
	return err
}
