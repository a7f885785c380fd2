// Package gateway measures requests per second and tail latency of REST and gRPC inference on a model that takes no
// time. It compares the gateway with two kinds of bare net/http and grpc-go servers that read the same requests and
// write the same responses: one does nothing else, the other also runs the same inference, so that the difference to
// it is the gateway's own cost. Rounds of the three alternate, with the same closed-loop callers. Servers and callers
// share one process and its cores.
package gateway

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"downbeat.dev"
	"downbeat.dev/backend/emu"
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

// Run measures REST, then gRPC.
func Run(ctx context.Context, c Config) ([]Row, error) {
	dir, err := emu.WriteRepository(map[string]string{noop: modelFile(c.Input, c.Output)})
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

	// The bare servers stand beside the gateway in the same process: one pair answers at once, the other infers first.
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

// modelFile returns the configuration of a model that takes a nanosecond and is not batched, so that no request
// waits.
func modelFile(in, out int) string {
	return fmt.Sprintf(`platform: "emulated" max_batch_size: 1
input [ { name: "x" data_type: TYPE_UINT8 dims: [ %d ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ %d ] } ]
parameters { key: "alpha_ms" value { string_value: "0.000001" } } parameters { key: "beta_ms" value { string_value: "0" } }
parameters { key: "slo_ms" value { string_value: "10000" } }`, in, out)
}

// makeRequest returns the request that gRPC callers send.
func (c Config) makeRequest() *oip.ModelInferRequest {
	return &oip.ModelInferRequest{ModelName: noop, RawInputContents: [][]byte{make([]byte, c.Input)},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{1, int64(c.Input)}}}}
}

// makeResponse returns the response that bare servers send.
func (c Config) makeResponse() *oip.ModelInferResponse {
	return &oip.ModelInferResponse{ModelName: noop, ModelVersion: "1", RawOutputContents: [][]byte{make([]byte, c.Output)},
		Outputs: []*oip.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: "UINT8", Shape: []int64{1, int64(c.Output)}}}}
}
