package overhead

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

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

// errDropped means that a request ended by its deadline without an output.
var errDropped = errors.New("dropped")

// door sends one inference through one interface.
type door func(ctx context.Context, l load) error

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

// writeEmulated writes an emulated model with α and β in ms.
func writeEmulated(dir, name string, profile [2]string) error {
	if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(`platform: "emulated" max_batch_size: 4
input [ { name: "x" data_type: TYPE_UINT8 dims: [ %d ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ %d ] } ]
parameters { key: "alpha_ms" value { string_value: "%s" } } parameters { key: "beta_ms" value { string_value: "%s" } }
parameters { key: "slo_ms" value { string_value: "80" } }`, serveBytes, outputBytes, profile[0], profile[1])
	return os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(text), 0o644)
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
		row := ServeRow{Processors: processors, Door: d.name, Sent: c.Requests}
		for range 10 { // open connections and warm the models
			if err := d.ask(ctx, quick); err != nil && !errors.Is(err, errDropped) {
				return nil, fmt.Errorf("%s: %w", d.name, err)
			}
		}

		took, _, err := sendEvenly(ctx, d.ask, quick, c.Requests)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.name, err)
		}
		row.P50, row.P99 = quantileOf(took, 0.5), quantileOf(took, 0.99)

		took, dropped, err := sendEvenly(ctx, d.ask, loaded, c.Requests)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.name, err)
		}
		row.Dropped, row.LoadedP99 = dropped, quantileOf(took, 0.99)

		for _, t := range took {
			if t > loaded.timeout {
				row.Late++
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
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

// startServe runs the process and returns the addresses of its interfaces; ended is closed when it has ended.
func (c ServeConfig) startServe(ctx context.Context, models string, processors int) (addresses map[string]string, ended chan struct{}, err error) {
	ended = make(chan struct{})
	flags := []string{"-models", models, "-emulate", "1", "-http", "127.0.0.1:0", "-grpc", "127.0.0.1:0", "-listen", "127.0.0.1:0"}
	cmd := exec.CommandContext(ctx, c.Command[0], slices.Concat(c.Command[1:], flags)...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(processors))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = patience

	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		close(ended)
		return nil, ended, err
	}

	told := make(chan map[string]string, 1)
	go func() {
		defer close(ended)
		told <- readAddresses(log)
		_, _ = io.Copy(io.Discard, log)
		_ = cmd.Wait() // it was told to end
	}()

	select {
	case addresses = <-told:
	case <-time.After(patience):
	}
	if addresses["rest"] == "" || addresses["scheduler"] == "" {
		return nil, ended, fmt.Errorf("%s does not tell where it listens", strings.Join(c.Command, " "))
	}
	return addresses, ended, nil
}

var logged = regexp.MustCompile(`msg="(scheduler) listens" address=(\S+)|msg="gateway listens".* rest=(\S+) grpc=(\S+)`)

// readAddresses reads the process's log up to the line of the gateway, which starts last.
func readAddresses(log io.Reader) map[string]string {
	found := map[string]string{}
	// The kernel chooses the ports, so only the log names them.
	for lines := bufio.NewScanner(log); found["rest"] == "" && lines.Scan(); {
		if m := logged.FindStringSubmatch(lines.Text()); m != nil && m[1] != "" {
			found["scheduler"] = m[2]
		} else if m != nil {
			found["rest"], found["grpc"] = m[3], m[4]
		}
	}
	return found
}

func restDoor(client *http.Client, address string) door {
	return func(ctx context.Context, l load) error {
		parameters := ""
		if l.timeout > 0 {
			parameters = fmt.Sprintf(`"parameters":{"timeout":%d},`, l.timeout.Microseconds())
		}

		body := fmt.Sprintf(`{%s"inputs":[{"name":"x","datatype":"UINT8","shape":[1,%d],"data":[%s0]}]}`, parameters, serveBytes, strings.Repeat("0,", serveBytes-1))
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/"+l.model+"/infer", strings.NewReader(body))
		if err != nil {
			return err
		}

		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)

		switch {
		case err != nil:
			return err
		case answer.StatusCode == http.StatusGatewayTimeout:
			return errDropped
		case answer.StatusCode != http.StatusOK:
			return fmt.Errorf("status %d: %.200s", answer.StatusCode, text)
		}
		return nil
	}
}

func grpcDoor(client oip.GRPCInferenceServiceClient) door {
	return func(ctx context.Context, l load) error {
		r := &oip.ModelInferRequest{ModelName: l.model, RawInputContents: [][]byte{make([]byte, serveBytes)},
			Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "UINT8", Shape: []int64{1, serveBytes}}}}
		if l.timeout > 0 {
			r.Parameters = map[string]*oip.InferParameter{"timeout": {ParameterChoice: &oip.InferParameter_Int64Param{Int64Param: l.timeout.Microseconds()}}}
		}

		_, err := client.ModelInfer(ctx, r)

		// One code covers deadlines that cannot be met and deadlines that passed before the scheduler was asked.
		if status.Code(err) == codes.DeadlineExceeded {
			return errDropped
		}
		return err
	}
}

func libraryDoor(client *frontend.Client) door {
	return func(ctx context.Context, l load) error {
		if l.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, l.timeout)
			defer cancel()
		}
		r, err := client.InferCopy(ctx, l.model, make([]byte, serveBytes))
		r.Release()
		if errors.Is(err, context.DeadlineExceeded) {
			return errDropped
		}
		return err
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
