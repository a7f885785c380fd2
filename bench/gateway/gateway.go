// Package gateway measures requests per second and tail latency of REST and gRPC inference on a model that takes no
// time. It compares the gateway with two kinds of bare net/http and grpc-go servers that read the same requests and
// write the same responses: one does nothing else, the other also runs the same inference, so that the difference to
// it is the gateway's own cost. Rounds of the three alternate, with the same closed-loop callers. Servers and callers
// share one process and its cores.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev"
	"downbeat.dev/bench/stage"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// Config is the configuration of a measurement.
type Config struct {
	Callers int           // concurrent closed loops
	Conns   int           // connections that they share
	Rounds  int           // alternations
	Each    time.Duration // length of a round
	Input   int           // bytes of a request's tensor
	Output  int           // bytes of a response's tensor
	Shared  bool          // compare tensors in shared memory with tensors in messages to the same gateway
	Traced  bool          // compare a gateway that traces a share of its calls with one that traces none
}

// noop is the requested model, with the tensors of the Config.
const noop = "noop"

// Row is the result of one side of a contest.
type Row struct {
	Protocol string
	Side     string
	Rate     float64 // median of the rounds, requests/s
	P99      time.Duration
	CPU      time.Duration // of the whole process per request, callers included: steadier than the rate on a shared host
	Errors   int
}

// caller sends one request and waits for its answer.
type caller func(ctx context.Context) error

// side is one server under test, with its callers.
type side struct {
	name    string
	callers []caller
	rates   []float64
	delays  []time.Duration
	cpu     time.Duration
	n       int
	errors  int
}

// Run measures REST, then gRPC.
func Run(ctx context.Context, c Config) ([]Row, error) {
	dir, err := stage.WriteRepository(map[string]string{noop: modelFile(c.Input, c.Output)})
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	serve := downbeat.Default()
	serve.Roles |= downbeat.Gateway
	serve.Models, serve.Emulate, serve.HTTP, serve.GRPC, serve.Protocol.ClientSHM = dir, 1, "127.0.0.1:0", "127.0.0.1:0", c.Shared
	serve.TuneClient = func(o *frontend.Options) { o.Grace = 10 * time.Second } // count late outputs, too

	if c.Traced {
		return c.runTraced(ctx, serve)
	}

	// Start the whole system as users do, so that the gateway is measured with everything behind it.
	s, err := downbeat.Start(ctx, serve)
	if err != nil {
		return nil, err
	}
	defer s.Close()

	if c.Shared {
		return c.runShared(ctx, s)
	}

	var servers running
	defer servers.stopAll()
	bareREST, bareRPC, err := servers.servePair(c.newBare(nil).serveBoth)
	if err != nil {
		return nil, err
	}
	runREST, runRPC, err := servers.servePair(c.newBare(s.Client()).serveBoth)
	if err != nil {
		return nil, err
	}
	return c.compareAll(ctx, []contest{
		{"REST, binary tensors", []rival{{"gateway", c.restCallers, s.Config().HTTP}, {"bare", c.restCallers, bareREST}, {bareRunning, c.restCallers, runREST}}},
		{"gRPC", []rival{{"gateway", c.grpcCallers, s.Config().GRPC}, {"bare", c.grpcCallers, bareRPC}, {bareRunning, c.grpcCallers, runRPC}}},
	})
}

// bareRunning names the bare servers that run the inference.
const bareRunning = "bare, with inference"

// connect creates the callers of one side, and a function that closes them.
type connect func(addr string) ([]caller, func(), error)

// rival is one side before it is called: its name, the callers' constructor and the server's address.
type rival struct {
	name string
	way  connect
	addr string
}

// contest is the rivals that alternate over one protocol. Tables give the first rival's rate over each other's.
type contest struct {
	protocol string
	rivals   []rival
}

func (c Config) compareAll(ctx context.Context, contests []contest) (rows []Row, err error) {
	for _, one := range contests {
		found, err := c.compareOne(ctx, one)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", one.protocol, err)
		}
		rows = append(rows, found...)
	}
	return rows, nil
}

func (c Config) compareOne(ctx context.Context, one contest) (rows []Row, err error) {
	sides := make([]*side, len(one.rivals))
	for i, r := range one.rivals {
		callers, done, err := r.way(r.addr)
		if err != nil {
			return nil, err
		}
		defer done()
		sides[i] = &side{name: r.name, callers: callers}
	}

	// All sides alternate in short rounds, so that a slow phase of the host affects each; the first round warms up.
	for round := range c.Rounds + 1 {
		for _, s := range sides {
			if err := s.runRound(ctx, c.Each, round > 0); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}

	for _, s := range sides {
		rows = append(rows, Row{one.protocol, s.name, medianOf(s.rates), p99(s.delays), s.cpuEach(), s.errors})
	}
	return rows, nil
}

// cpuEach returns the processor time per request.
func (s *side) cpuEach() time.Duration { return s.cpu / time.Duration(s.n) }

// cpuTime returns the process's processor time since its start.
func cpuTime() time.Duration {
	var u unix.Rusage
	// Sum user and system time: the kernel's part of a request is the cost of sockets.
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// runRound runs every caller for a while.
func (s *side) runRound(ctx context.Context, d time.Duration, count bool) error {
	var mu sync.Mutex
	var wait sync.WaitGroup
	n, failed := 0, 0
	var last error

	// Measure processor time over the whole round, callers included: one process cannot separate them.
	began, used := time.Now(), cpuTime()

	for _, call := range s.callers {
		wait.Go(func() {
			var delays []time.Duration
			bad := 0
			var err error
			// Callers send again as soon as they are answered, so the rate is what both ends together can sustain.
			for time.Since(began) < d && ctx.Err() == nil {
				t := time.Now()
				if e := call(ctx); e != nil {
					bad++
					err = e
					continue
				}
				delays = append(delays, time.Since(t))
			}

			mu.Lock()
			defer mu.Unlock()
			n += len(delays)
			failed += bad
			if err != nil {
				last = err
			}
			if count {
				s.delays = append(s.delays, delays...)
			}
		})
	}

	wait.Wait()

	// A server that answers nothing must not look infinitely fast.
	if n == 0 {
		return errors.Join(errors.New("no request was answered"), last, ctx.Err())
	}

	if count {
		s.rates = append(s.rates, float64(n)/time.Since(began).Seconds())
		s.errors += failed
		s.n += n
		s.cpu += cpuTime() - used
	}
	return ctx.Err()
}

func medianOf(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func p99(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)*99/100]
}

// WriteTable prints rows for people. The last columns divide the rate of each protocol's first side by the rate of each
// other side; if the first side has its tensors in messages, they divide the other way round.
func (c Config) WriteTable(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	against := rows[0].Side + " / it"
	if c.Shared {
		against = "it / " + rows[0].Side
	}
	fmt.Fprintf(w, "protocol\tside\trequests/s\tp99\tCPU\terrors\t%[1]s\tp99, %[1]s\tby CPU, %[1]s\t\n", against)

	first := rows[0]
	for _, r := range rows {
		if r.Protocol != first.Protocol {
			first = r
		}
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%.2f ms\t%.1f µs\t%d\t", r.Protocol, r.Side, r.Rate, r.P99.Seconds()*1e3, float64(r.CPU.Nanoseconds())/1e3, r.Errors)

		over, under := first, r
		if c.Shared {
			over, under = r, first
		}
		if r != first {
			fmt.Fprintf(w, "%.2f\t%.2f\t%.2f\t", over.Rate/under.Rate, over.P99.Seconds()/under.P99.Seconds(), under.CPU.Seconds()/over.CPU.Seconds())
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// running are the servers of a run.
type running struct {
	cancels []context.CancelFunc
	wait    sync.WaitGroup
}

// servePair starts a pair of servers on loopback and returns their addresses.
func (r *running) servePair(f func(ctx context.Context, rest, rpc net.Listener) error) (rest, rpc string, err error) {
	a, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}

	b, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.Close()
		return "", "", err
	}

	ctx, cancel := context.WithCancel(context.Background())
	r.cancels = append(r.cancels, cancel)
	r.wait.Go(func() { _ = f(ctx, a, b) }) // a server that cannot serve shows as callers' errors
	return a.Addr().String(), b.Addr().String(), nil
}

func (r *running) stopAll() {
	for _, cancel := range r.cancels {
		cancel()
	}
	r.wait.Wait()
}

// modelFile returns the configuration of a model that takes a nanosecond and is not batched, so that no request
// waits.
func modelFile(in, out int) string {
	return fmt.Sprintf(`platform: "emulated" max_batch_size: 1
input [ { name: "x" data_type: TYPE_UINT8 dims: [ %d ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ %d ] } ]
parameters { key: "alpha_ms" value { string_value: "0.000001" } } parameters { key: "beta_ms" value { string_value: "0" } }
parameters { key: "slo_ms" value { string_value: "10000" } }`, in, out)
}

func (c Config) makeRequest() *oip.ModelInferRequest {
	return &oip.ModelInferRequest{ModelName: noop, RawInputContents: [][]byte{make([]byte, c.Input)},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{1, int64(c.Input)}}}}
}

func (c Config) makeResponse() *oip.ModelInferResponse {
	return &oip.ModelInferResponse{ModelName: noop, ModelVersion: "1", RawOutputContents: [][]byte{make([]byte, c.Output)},
		Outputs: []*oip.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "UINT8", Shape: []int64{1, int64(c.Output)}}}}
}
