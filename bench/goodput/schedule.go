package goodput

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"text/tabwriter"

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

// Check returns an error if a value is out of its range, or if a file to write is also one to read.
func (r Replay) Check() error {
	if r.GPUs < 1 || r.GPUs > scheduleGPUs {
		return fmt.Errorf("gpus = %d: want 1 to %d", r.GPUs, scheduleGPUs)
	}
	if r.Ctrl < 0 || r.Data < 0 || r.Ctrl > 3600e9 || r.Data > 3600e9 {
		return fmt.Errorf("ctrl = %d ns, data = %d ns: want 0 to an hour", r.Ctrl, r.Data)
	}
	return r.checkDistinct()
}

// Run reads the workload, runs it, writes both files and prints a summary. Arrivals are lines `arrival_us,model` in
// order of time (microseconds, fractions allowed; one header line of these names may come first), profiles lines
// `model,alpha_ms,beta_ms,slo_ms` after a header. Batches are written as
// `batch,gpu,model,size,start_ns,end_ns,requests` (requests: zero-based arrival line numbers, not counting the
// header, joined by ';'), outcomes as `request,outcome,time_ns`, both with a header. Errors name the file, the line,
// the field and the value.
func (r Replay) Run(w io.Writer) error {
	// Check the names before opening a file for writing, so that no input is truncated.
	if err := r.Check(); err != nil {
		return err
	}

	world, err := r.readWorld()
	if err != nil {
		return err
	}
	if err := r.runWorld(world); err != nil {
		return err
	}
	return r.printSummary(w, world)
}

// readWorld reads the models and the arrivals: first the models, because arrivals name them.
func (r Replay) readWorld() (*sim.World, error) {
	world := &sim.World{GPUs: r.GPUs, Ctrl: r.Ctrl, Data: r.Data}
	index := make(map[string]int32)
	err := readFile(r.Profiles, func(f io.Reader) (err error) {
		world.Models, err = readModels(f, index)
		return err
	})
	if err != nil {
		return nil, err
	}

	err = readFile(r.Arrivals, func(f io.Reader) (err error) {
		world.Arrivals, err = readArrivals(f, index)
		return err
	})
	return world, err
}

// readModels reads the profiles and notes the index of each name.
func readModels(f io.Reader, index map[string]int32) (models []sim.Model, err error) {
	entries, err := profile.ReadCSV(f)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("no models, want at least one row after the header")
	}

	for i, e := range entries {
		p, err := e.Profile()
		if err != nil {
			return nil, err
		}
		index[e.Name] = int32(i)
		models = append(models, sim.Model{Name: e.Name, Profile: p, SLO: sim.Duration(e.SLO)})
	}
	return models, nil
}

// runWorld drives the world and writes both files.
func (r Replay) runWorld(world *sim.World) (err error) {
	// A file that cannot be closed may be incomplete, which is an error of the run.
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

// printSummary prints one row per model with requests, and a total.
func (r Replay) printSummary(w io.Writer, world *sim.World) error {
	res := &world.Result
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "model\trequests\tserved in time\tbad %\t")

	// A list of models may be long; those without requests say nothing.
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
