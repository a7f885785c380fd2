// Package gateway measures requests per second and tail latency of REST and gRPC inference on a
// model that takes no time, beside a bare net/http and a bare grpc-go server that read the same
// requests and write the same responses and do nothing else. Rounds of the two alternate, with the
// same closed-loop callers. Servers and callers share one process and its cores.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"downbeat.dev/bench/stage"
	"downbeat.dev/frontend/gateway"
	"downbeat.dev/frontend/gateway/oip"
)

// Config says what to measure.
type Config struct {
	Callers int           // closed loops at a time
	Conns   int           // connections that they share
	Rounds  int           // alternations
	Each    time.Duration // length of a round
	Input   int           // bytes of a request's tensor
	Output  int           // bytes of a response's tensor
}

// Row is one protocol's result.
type Row struct {
	Protocol       string
	Rate, BareRate float64 // median of the rounds, requests/s
	P99, BareP99   time.Duration
	CPU, BareCPU   time.Duration // of the whole process per request, callers included: steadier than the rate on a shared host
	Errors         int
}

// Ratio is the gateway's rate over the bare server's.
func (r Row) Ratio() float64 { return r.Rate / r.BareRate }

// caller sends one request and waits for its answer.
type caller func(ctx context.Context) error

// side is one server under test: how each caller calls it.
type side struct {
	callers []caller
	rates   []float64
	delays  []time.Duration
	cpu     time.Duration
	n       int
	errors  int
}

// Run measures REST, then gRPC.
func Run(ctx context.Context, c Config) ([]Row, error) {
	s, err := stage.Open(ctx, model(c.Input, c.Output), 1)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	g := gateway.New(s.Client, gateway.Options{})
	var servers running
	defer servers.stop()
	rest, rpc, err := servers.serve(func(ctx context.Context, rest, rpc net.Listener) error { return g.Serve(ctx, rest, rpc) })
	if err != nil {
		return nil, err
	}
	bareREST, bareRPC, err := servers.serve(c.bare)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, p := range []struct {
		name       string
		connect    func(addr string) ([]caller, func(), error)
		addr, bare string
	}{
		{"REST, binary tensors", c.restCallers, rest, bareREST},
		{"gRPC", c.grpcCallers, rpc, bareRPC},
	} {
		ours, done, err := p.connect(p.addr)
		if err != nil {
			return rows, err
		}
		bare, done2, err := p.connect(p.bare)
		if err != nil {
			return rows, err
		}
		row, err := c.alternate(ctx, p.name, &side{callers: ours}, &side{callers: bare})
		done()
		done2()
		if err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// alternate runs rounds of both in turn; the first of each warms up.
func (c Config) alternate(ctx context.Context, name string, ours, bare *side) (Row, error) {
	for round := range c.Rounds + 1 {
		for _, s := range []*side{ours, bare} {
			if err := s.round(ctx, c.Each, round > 0); err != nil {
				return Row{}, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return Row{Protocol: name, Rate: median(ours.rates), BareRate: median(bare.rates), P99: p99(ours.delays), BareP99: p99(bare.delays),
		CPU: ours.cpu / time.Duration(ours.n), BareCPU: bare.cpu / time.Duration(bare.n), Errors: ours.errors}, nil
}

// cpuTime is what the process has used since it started.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// round lets every caller call for a while.
func (s *side) round(ctx context.Context, d time.Duration, count bool) error {
	var mu sync.Mutex
	var wait sync.WaitGroup
	n, failed := 0, 0
	var last error
	began, used := time.Now(), cpuTime()
	for _, call := range s.callers {
		wait.Go(func() {
			var delays []time.Duration
			bad := 0
			var err error
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

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func p99(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)*99/100]
}

// WriteTable prints rows for people.
func WriteTable(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "protocol\tgateway r/s\tp99\tbare r/s\tbare p99\tgateway / bare\tCPU\tbare CPU\terrors\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%.0f\t%.2f ms\t%.0f\t%.2f ms\t%.2f\t%.1f µs\t%.1f µs\t%d\t\n", r.Protocol, r.Rate, r.P99.Seconds()*1e3, r.BareRate, r.BareP99.Seconds()*1e3, r.Ratio(), float64(r.CPU.Nanoseconds())/1e3, float64(r.BareCPU.Nanoseconds())/1e3, r.Errors)
	}
	return w.Flush()
}

// running are the servers of a run.
type running struct {
	cancels []context.CancelFunc
	wait    sync.WaitGroup
}

// serve starts a pair of servers on loopback and returns where.
func (r *running) serve(f func(ctx context.Context, rest, rpc net.Listener) error) (rest, rpc string, err error) {
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

func (r *running) stop() {
	for _, cancel := range r.cancels {
		cancel()
	}
	r.wait.Wait()
}

// model takes a nanosecond and is not batched, so that nothing is waited for.
func model(in, out int) map[string]string {
	return map[string]string{"noop": fmt.Sprintf(`platform: "emulated" max_batch_size: 1
input [ { name: "x" data_type: TYPE_UINT8 dims: [ %d ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ %d ] } ]
parameters { key: "alpha_ms" value { string_value: "0.000001" } } parameters { key: "beta_ms" value { string_value: "0" } }
parameters { key: "slo_ms" value { string_value: "10000" } }`, in, out)}
}

func (c Config) request() *oip.ModelInferRequest {
	return &oip.ModelInferRequest{ModelName: "noop", RawInputContents: [][]byte{make([]byte, c.Input)},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{1, int64(c.Input)}}}}
}

func (c Config) response() *oip.ModelInferResponse {
	return &oip.ModelInferResponse{ModelName: "noop", ModelVersion: "1", RawOutputContents: [][]byte{make([]byte, c.Output)},
		Outputs: []*oip.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "UINT8", Shape: []int64{1, int64(c.Output)}}}}
}

// bareGRPC answers every inference at once.
type bareGRPC struct {
	oip.UnimplementedGRPCInferenceServiceServer
	response *oip.ModelInferResponse
}

func (b *bareGRPC) ModelInfer(context.Context, *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
	return b.response, nil
}

var _ oip.GRPCInferenceServiceServer = (*bareGRPC)(nil)

func (c Config) bareServer() *grpc.Server {
	s := grpc.NewServer()
	oip.RegisterGRPCInferenceServiceServer(s, &bareGRPC{response: c.response()})
	return s
}
