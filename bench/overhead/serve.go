package overhead

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"downbeat.dev/bench/median"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// ServeConfig is the configuration of a measurement of the whole of "downbeat serve".
type ServeConfig struct {
	Command    []string // command that starts it, without flags
	Processors []int    // values of GOMAXPROCS, one process each
	Requests   int      // of each run
}

// ServeRow is the result of one process through one interface. All latencies count from the intended time of sending.
type ServeRow struct {
	Processors int
	Door       string        // REST, gRPC, library
	P50, P99   time.Duration // of a model of 20 µs at 50 requests/s
	// Of a model with ℓ(b) = 5b + 10 ms and batches of at most 4, at 80 requests/s with a timeout of 40 ms. That is
	// 60 % of its capacity, so no request need be late or without an output.
	Sent, Dropped, Late int
	LoadedP99           time.Duration // of requests with an output
}

// A load is one run's model, its requests per second and their timeout; 0: the model's SLO.
type load struct {
	model   string
	rate    float64
	timeout time.Duration
}

var (
	quick  = load{model: "quick", rate: 50}
	loaded = load{model: "loaded", rate: 80, timeout: 40 * time.Millisecond}
)

const serveBytes = 64 // of an input

// RunServe starts one process for each number of processors and measures each of its interfaces.
func RunServe(ctx context.Context, c ServeConfig) (rows []ServeRow, err error) {
	dir, err := os.MkdirTemp("", "downbeat-overhead-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	// One model shows the added latency, the other the losses under load.
	for name, profile := range map[string][2]string{quick.model: {"0.01", "0.01"}, loaded.model: {"5", "10"}} {
		if err := writeEmulated(dir, name, profile); err != nil {
			return nil, err
		}
	}

	for _, processors := range c.Processors {
		got, err := c.measureProcess(ctx, dir, processors)
		if err != nil {
			return nil, fmt.Errorf("GOMAXPROCS %d: %w", processors, err)
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

// measureProcess measures one process through its three interfaces.
func (c ServeConfig) measureProcess(ctx context.Context, models string, processors int) (rows []ServeRow, err error) {
	ctx, cancel := context.WithCancel(ctx)
	addresses, ended, err := c.startServe(ctx, models, processors)
	defer func() { cancel(); <-ended }()
	if err != nil {
		return nil, err
	}

	// The gateway's two interfaces and the library reach the same scheduler, so only the interfaces differ.
	library, err := frontend.Dial(ctx, frontend.Options{Scheduler: addresses["scheduler"]})
	if err != nil {
		return nil, err
	}
	defer library.Close()
	conn, err := grpc.NewClient(addresses["grpc"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()

	// Keep enough connections for all requests under way: new connections would count in the latency.
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()

	doors := []struct {
		name string
		ask  door
	}{{"REST", restDoor(client, addresses["rest"])}, {"gRPC", grpcDoor(oip.NewGRPCInferenceServiceClient(conn))}, {"library", libraryDoor(library)}}
	for _, d := range doors {
		row, err := c.measureDoor(ctx, d.ask)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.name, err)
		}
		row.Processors, row.Door = processors, d.name
		rows = append(rows, row)
	}
	return rows, nil
}

// measureDoor measures one interface: idle, then under load.
func (c ServeConfig) measureDoor(ctx context.Context, ask door) (row ServeRow, err error) {
	// The first requests open connections and warm the models.
	for range 10 {
		if err := ask(ctx, quick); err != nil && !errors.Is(err, errDropped) {
			return row, err
		}
	}

	took, _, err := sendEvenly(ctx, ask, quick, c.Requests)
	if err != nil {
		return row, err
	}
	row.P50, row.P99 = median.Percentile(took, 50), median.Percentile(took, 99)

	took, dropped, err := sendEvenly(ctx, ask, loaded, c.Requests)
	if err != nil {
		return row, err
	}
	row.Sent, row.Dropped, row.LoadedP99 = c.Requests, dropped, median.Percentile(took, 99)

	// An output after the timeout counts as late: the caller no longer waits for it.
	for _, t := range took {
		if t > loaded.timeout {
			row.Late++
		}
	}
	return row, nil
}

// sendEvenly sends requests at a constant rate, regardless of their outcomes. It returns the latencies of those with
// an output, from the intended time of sending, and the number of dropped ones.
func sendEvenly(ctx context.Context, ask door, l load, requests int) (took []time.Duration, dropped int, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup

	// Start a little ahead, so that starting goroutines does not delay the first request.
	began := time.Now().Add(50 * time.Millisecond)
	for i := range requests {
		due := began.Add(time.Duration(float64(i) / l.rate * float64(time.Second)))
		sleepUntil(due)

		all.Go(func() {
			fail := ask(ctx, l)
			t := time.Since(due)

			mu.Lock()
			defer mu.Unlock()
			switch {
			case fail == nil:
				took = append(took, t)
			case errors.Is(fail, errDropped):
				dropped++
			default:
				err = fail
			}
		})
	}

	all.Wait()
	if err == nil && len(took) == 0 {
		err = fmt.Errorf("none of %d requests got an output", requests)
	}
	return took, dropped, err
}

// sleepUntil sleeps and spins at the end: Go's timers are late by up to a millisecond.
func sleepUntil(due time.Time) {
	time.Sleep(time.Until(due) - time.Millisecond)
	for time.Until(due) > 0 {
	}
}

// WriteServeTable prints rows for people.
func WriteServeTable(out io.Writer, rows []ServeRow) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "serve, GOMAXPROCS\tdoor\tp50\tp99\tloaded: sent\tdropped\tlate\tp99\t")
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Nanoseconds())/1e6) }
	for _, r := range rows {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t\n", r.Processors, r.Door, ms(r.P50), ms(r.P99), r.Sent, r.Dropped, r.Late, ms(r.LoadedP99))
	}
	return w.Flush()
}
