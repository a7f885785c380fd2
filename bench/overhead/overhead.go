// Package overhead measures the latency that the system adds to one request, beyond executor time and deliberate
// deferral. A closed loop of one caller goes through library, scheduler, backend and back, on a model that takes no
// time and whose batches hold one request, so that no request waits.
//
// For comparison, in alternating rounds of the same run, it measures a floor: processes that pass messages of the
// same sizes over the same hops, by Go's net package, and do nothing else.
package overhead

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"downbeat.dev/bench/median"
	"downbeat.dev/bench/stage"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// Config is the configuration of a measurement.
type Config struct {
	Rounds   int      // alternations of the system and the floor
	Each     int      // requests per round
	Bytes    int      // of a request's input
	Provider string   // of the data plane between the processes: shm, tcp; empty: the best available
	Child    []string // command line that runs Serve in a child: binary and leading arguments
}

// Row is one line of the result. Floor is 0 if there is none.
type Row struct {
	Setup            string
	P50, P99         time.Duration
	FloorP50, Floor9 time.Duration
}

const (
	outputBytes = 64
	patience    = 10 * time.Second
)

// modelFiles returns the configuration of a model that takes a nanosecond and is never batched.
func modelFiles(bytes int) map[string]string {
	return map[string]string{"noop": fmt.Sprintf(`platform: "emulated" max_batch_size: 1
input [ { name: "x" data_type: TYPE_UINT8 dims: [ %d ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ %d ] } ]
parameters { key: "alpha_ms" value { string_value: "0.000001" } } parameters { key: "beta_ms" value { string_value: "0" } }
parameters { key: "slo_ms" value { string_value: "1000" } }`, bytes, outputBytes)}
}

// Run measures one process, then three.
func Run(ctx context.Context, c Config) ([]Row, error) {
	one, err := c.oneProcess(ctx)
	if err != nil {
		return nil, fmt.Errorf("one process: %w", err)
	}
	three, err := c.threeProcesses(ctx)
	if err != nil {
		return nil, fmt.Errorf("three processes: %w", err)
	}
	return []Row{one, three}, nil
}

// oneProcess measures scheduler, backend and library in this process. There is no floor: nothing is sent.
func (c Config) oneProcess(ctx context.Context) (Row, error) {
	s, err := stage.Open(ctx, modelFiles(c.Bytes), 1)
	if err != nil {
		return Row{}, err
	}
	defer s.Close()

	ping, done, err := c.startRequest(s.Client)
	if err != nil {
		return Row{}, err
	}
	defer done()
	ours, _, err := c.alternateRounds(ping, nil)
	return makeRow("all in one process", ours, nil), err
}

// startRequest returns a function that sends one request and waits.
func (c Config) startRequest(client *frontend.Client) (ping func() error, done func(), err error) {
	in, err := client.Buffer(c.Bytes)
	if err != nil {
		return nil, nil, err
	}

	// Every request reuses the buffer, so that registering memory is not part of the loop.
	return func() error {
		r, err := client.Infer(context.Background(), "noop", in)
		r.Release()
		return err
	}, in.Free, nil
}

// threeProcesses measures scheduler and backend in processes of their own, and the floor between as many processes.
func (c Config) threeProcesses(ctx context.Context) (Row, error) {
	ctx, cancel := context.WithCancel(ctx)
	var kids children
	defer func() { cancel(); kids.waitAll() }()

	scheduler, err := kids.startChild(ctx, c.Child, "-serve", "scheduler")
	if err != nil {
		return Row{}, err
	}
	if _, err := kids.startChild(ctx, c.Child, "-serve", "backend", "-scheduler", scheduler, "-bytes", fmt.Sprint(c.Bytes), "-provider", c.Provider); err != nil {
		return Row{}, err
	}

	s := &stage.Stage{}
	defer func() { _ = s.Close() }()
	if err := s.OpenFrontend(ctx, frontend.Options{Scheduler: scheduler, Data: frontend.DataPlane{Providers: dataConfig(c.Provider).Providers}}); err != nil {
		return Row{}, err
	}

	ping, done, err := c.startRequest(s.Client)
	if err != nil {
		return Row{}, err
	}
	defer done()

	// The first answer shows that the backend has connected.
	if err := ping(); err != nil {
		return Row{}, err
	}

	// If a provider moves data without the peer's processor, the floor needs no second round trip either.
	name, fetch := "three processes", c.Bytes
	if p := s.Client.Stats().Data.Peers; len(p) > 0 {
		name += ", " + p[0].Provider
		if p[0].Provider != "tcp" {
			fetch = 0
		}
	}

	floor, err := c.startFloor(ctx, &kids, fetch)
	if err != nil {
		return Row{}, err
	}
	ours, theirs, err := c.alternateRounds(ping, floor)
	return makeRow(name, ours, theirs), err
}

// alternateRounds runs rounds of both in turn; the first round of each is a warm-up and does not count.
func (c Config) alternateRounds(ours, floor func() error) (a, b []time.Duration, err error) {
	for round := range c.Rounds + 1 {
		for i, f := range []func() error{ours, floor} {
			if f == nil {
				continue
			}

			// Time each request separately: quantiles need every one.
			for range c.Each {
				began := time.Now()
				if err := f(); err != nil {
					return nil, nil, err
				}

				took := time.Since(began)
				switch {
				case round == 0:
				case i == 0:
					a = append(a, took)
				default:
					b = append(b, took)
				}
			}
		}
	}
	return a, b, nil
}

// makeRow returns the row of a set-up.
func makeRow(name string, ours, floor []time.Duration) Row {
	return Row{Setup: name, P50: median.Percentile(ours, 50), P99: median.Percentile(ours, 99), FloorP50: median.Percentile(floor, 50), Floor9: median.Percentile(floor, 99)}
}

// WriteTable prints rows for people.
func WriteTable(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "setup\tp50\tp99\tfloor p50\tfloor p99\tp50 / floor\t")

	us := func(d time.Duration) string {
		if d == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/1e3)
	}

	for _, r := range rows {
		ratio := "-"
		if r.FloorP50 > 0 {
			ratio = fmt.Sprintf("%.2f", float64(r.P50)/float64(r.FloorP50))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Setup, us(r.P50), us(r.P99), us(r.FloorP50), us(r.Floor9), ratio)
	}
	return w.Flush()
}

func dataConfig(provider string) rdma.Config {
	c := rdma.Config{}
	if provider != "" {
		c.Providers = []string{provider}
	}
	return c
}
