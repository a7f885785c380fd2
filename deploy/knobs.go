package deploy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"downbeat.dev/core/observe/levels"
	"downbeat.dev/core/observe/tracing"
)

// Sets of commands that read the same knobs.
var (
	ofSchedulers = []string{"demo", "serve", "scheduler"}
	ofBackends   = []string{"demo", "serve", "backend"}
	ofGateways   = []string{"demo", "serve", "gateway"}
	ofData       = []string{"demo", "serve", "backend", "gateway", "infer", "load", "rollback"}

	// The demo is not among them: it has one client and loads the models that it finds.
	ofLastingBackends = []string{"serve", "backend"}
	ofLastingGateways = []string{"serve", "gateway"}
)

// Rooms is the table of all knobs, at most fifteen per room. A constant that no two deployments would set differently
// stays beside the code that uses it.
var Rooms = []Room{
	{"", "What all parts share", []Knob{
		{Name: "scheduler", Default: "127.0.0.1:7070", Readers: []string{"scheduler", "backend", "gateway", "infer", "load", "rollback"},
			Help:  "`address` of the scheduler to connect to, or of the leader and its standbys, separated by commas",
			field: func(c *Config) any { return &c.Scheduler }, check: checkSchedulers},
		{Name: "token_file", Default: "", Help: "`file` with the secret that all parts share; needed to listen beyond loopback",
			field: func(c *Config) any { return &c.TokenFile }},
		{Name: "tls", Default: "", Help: "`directory` with tls.crt, tls.key and ca.crt; empty: no TLS",
			field: func(c *Config) any { return &c.TLS }},
		{Name: "cluster.tls_name", Default: "", Help: "`name` that every part's certificate has; empty: each certificate has the name or address of its host that others dial",
			field: func(c *Config) any { return &c.Cluster.TLSName }, check: checkTLSName},
		{Name: "log_level", Default: "info", Help: "least `level` of logged messages: debug, info, warn or error",
			field: func(c *Config) any { return &c.LogLevel }, check: func(c *Config) error { return checkOneOf(c.LogLevel, levels.Names...) }},
		{Name: "log_rooms", Default: "", Help: "log levels of single parts that differ from log_level, a `list` such as rdma=debug,backend=warn; parts are core, rdma, backend and frontend",
			field: func(c *Config) any { return &c.LogRooms }, check: func(c *Config) error { return levels.CheckRooms(c.LogRooms) }},
	}},

	{"core", "the scheduler", []Knob{
		{Name: "listen", Default: "127.0.0.1:7070", Readers: []string{"serve", "scheduler"}, Help: "`address` on which the scheduler listens for frontends and backends",
			field: func(c *Config) any { return &c.Listen }, check: func(c *Config) error { return c.checkListener(c.Listen) }},
		{Name: "prompt", Default: 0.3, Readers: ofSchedulers, Help: "`share` of the GPUs that the load needs, below which batches start at once instead of collecting requests; 0: batches always collect",
			field: func(c *Config) any { return &c.Prompt }, check: func(c *Config) error { return checkRange(c.Prompt, 0, 1) }},
		{Name: "learn_share", Default: 0.15, Readers: ofSchedulers, Help: "largest `share` of GPU time, 0 to 0.5, that learners get while families of variants could use all of it; less if accuracy floors need it; 0: learners use only idle time",
			field: func(c *Config) any { return &c.LearnShare }, check: func(c *Config) error { return checkRange(c.LearnShare, 0, 0.5) }},
		{Name: "queue_max", Default: 100_000, Readers: ofSchedulers, Help: "`number` of requests queued per model, beyond which new ones are rejected",
			field: func(c *Config) any { return &c.QueueMax }, check: func(c *Config) error { return checkRange(c.QueueMax, 1, 100_000_000) }},
		{Name: "accuracy.floors", Default: "", Readers: ofSchedulers, Help: "least accuracy of an answer, by family: a `list` such as vehicle=0.9,activity=0.8",
			field: func(c *Config) any { return &c.Accuracy.Floors }, flag: "accuracy-floors", check: checkFloors},
		{Name: "cluster.epoch", Default: time.Duration(0), Readers: ofSchedulers, Help: "`duration` between automatic plans that place models by demand, 10s to 24h; 0: only an operator applies plans",
			field: func(c *Config) any { return &c.Cluster.Epoch }, check: checkEpoch},
		{Name: "cluster.election", Default: "", Readers: []string{"scheduler"},
			Help:  "`URL` at which schedulers elect a leader: etcd://HOST:PORT,.../NAME, etcds:// (TLS), kubernetes://NAMESPACE/LEASE or file:///PATH; empty: this scheduler leads",
			field: func(c *Config) any { return &c.Cluster.Election }, check: checkElection},
	}},

	{"rdma", "the data plane", []Knob{
		{Name: "data", Default: "127.0.0.1:0", Readers: ofData, Help: "`address` on which the data plane of frontends and backends listens",
			field: func(c *Config) any { return &c.Data }, check: func(c *Config) error { return c.checkListener(c.Data) }},
		{Name: "provider", Default: "auto", Readers: ofData, Help: "`provider` that moves the data: auto (the fastest that both hosts have), verbs, shm or tcp",
			field: func(c *Config) any { return &c.Provider }, check: func(c *Config) error { return checkOneOf(c.Provider, "auto", "verbs", "shm", "tcp") }},
	}},

	{"backend", "executors and the models that they load", []Knob{
		{Name: "models", Default: "models", Readers: []string{"demo", "demo drift", "serve", "backend", "infer"}, Help: "model repository `directory`; several, separated by commas",
			field: func(c *Config) any { return &c.Models }, check: checkModels},
		{Name: "executors", Default: 0, Readers: ofBackends, Help: "`number` of ONNX Runtime executors, one core each unless threads says more; 0: so many that they have half the cores",
			field: func(c *Config) any { return &c.Executors }, check: func(c *Config) error { return checkRange(c.Executors, 0, 1024) }},
		{Name: "threads", Default: 1, Readers: ofBackends, Help: "`number` of threads, and so of cores, of each ONNX Runtime executor",
			field: func(c *Config) any { return &c.Threads }, check: func(c *Config) error { return checkRange(c.Threads, 1, 256) }},
		{Name: "lanes", Default: 1, Readers: ofBackends,
			Help:  "`number` of equal parts into which each GPU, or the threads of each executor, are split; each runs batches as a GPU of its own. \"downbeat profile -lanes\" says which number serves most",
			field: func(c *Config) any { return &c.Lanes }, check: func(c *Config) error { return checkRange(c.Lanes, 1, 16) }},
		{Name: "emulate", Default: 0, Readers: ofBackends, Help: "`number` of emulated GPUs, used instead of ONNX Runtime; 0: none",
			field: func(c *Config) any { return &c.Emulate }, check: func(c *Config) error { return checkRange(c.Emulate, 0, 1024) }},
		{Name: "gpu", Default: false, Readers: ofBackends, Help: "run models on this host's GPUs, and on ONNX Runtime the models that the GPUs do not support; needs a binary built with the tag cuda",
			field: func(c *Config) any { return &c.GPU }},
		{Name: "protocol.strict_models", Default: false, Readers: ofLastingBackends,
			Help:  "refuse models whose config.pbtxt does not describe them in full, instead of completing it from their ONNX file",
			field: func(c *Config) any { return &c.Protocol.StrictModels }},
		{Name: "repository.model_control", Default: "none", Readers: ofLastingBackends,
			Help:  "`mode` in which models are loaded: none (all at start), explicit (those that clients load) or poll (all, and later changes of the repository)",
			field: func(c *Config) any { return &c.Repository.ModelControl }, check: func(c *Config) error { return checkOneOf(c.Repository.ModelControl, "none", "explicit", "poll") }},
		{Name: "repository.load_models", Default: "", Readers: ofLastingBackends,
			Help:  "with model_control explicit: `models` to load at start, separated by commas; * stands for all",
			field: func(c *Config) any { return &c.Repository.LoadModels }, check: func(c *Config) error { return c.checkExplicit(c.Repository.LoadModels) }},
		{Name: "repository.poll_every", Default: 15 * time.Second, Readers: ofLastingBackends,
			Help:  "with model_control poll: how often the repository is checked",
			field: func(c *Config) any { return &c.Repository.PollEvery }, check: func(c *Config) error { return checkRange(c.Repository.PollEvery, 100*time.Millisecond, 24*time.Hour) }},
		{Name: "repository.state_dir", Default: "", Readers: ofLastingBackends,
			Help:  "with model_control explicit: `directory` in which the backend notes the loaded models for its next start",
			field: func(c *Config) any { return &c.Repository.StateDir }, check: func(c *Config) error { return c.checkExplicit(c.Repository.StateDir) }},
	}},

	{"frontend", "the gateway", []Knob{
		{Name: "http", Default: "127.0.0.1:8000", Readers: ofGateways, Help: "`address` on which the gateway serves REST, /metrics and the page",
			field: func(c *Config) any { return &c.HTTP }, check: func(c *Config) error { return c.checkListener(c.HTTP) }},
		{Name: "grpc", Default: "127.0.0.1:8001", Readers: ofGateways, Help: "`address` on which the gateway serves gRPC",
			field: func(c *Config) any { return &c.GRPC }, check: func(c *Config) error { return c.checkListener(c.GRPC) }},
		{Name: "cluster.session_spare", Default: 1, Readers: []string{"demo", "serve"},
			Help:  "`number` of backends whose loss must not evict a session, as long as there are more",
			field: func(c *Config) any { return &c.Cluster.SessionSpare }, check: func(c *Config) error { return checkRange(c.Cluster.SessionSpare, 0, 1_000_000) }},
		{Name: "protocol.server_name", Default: "downbeat", Readers: ofGateways, Help: "`name` that server metadata reports; some clients compare it with triton",
			field: func(c *Config) any { return &c.Protocol.ServerName }, check: checkServerName},
		{Name: "protocol.client_shm", Default: false, Readers: ofGateways,
			Help:  "let clients on this host pass tensors in shared memory, if they run as the gateway's user, and in memory of this host's GPUs",
			field: func(c *Config) any { return &c.Protocol.ClientSHM }},
		{Name: "protocol.client_tokens_file", Default: "", Readers: ofLastingGateways,
			Help:  "`file` that gives each client a token and limits; empty: every client uses the secret of token_file",
			field: func(c *Config) any { return &c.Protocol.ClientTokensFile }},
		{Name: "protocol.restricted_file", Default: "", Readers: ofLastingGateways, Help: "`file` with the headers that classes of endpoints require; empty: none",
			field: func(c *Config) any { return &c.Protocol.RestrictedFile }},
		{Name: "protocol.triton_metrics", Default: false, Readers: []string{"serve", "gateway", "backend"}, Help: "also export metrics under Triton's names, such as nv_inference_count; on a backend also the power and memory of its GPUs",
			field: func(c *Config) any { return &c.Protocol.TritonMetrics }},
		{Name: "protocol.access_log", Default: false, Readers: ofLastingGateways,
			Help:  "log every inference call: model, request id, trace, rows, time, outcome",
			field: func(c *Config) any { return &c.Protocol.AccessLog }},
		{Name: "protocol.trace", Default: "", Readers: ofLastingGateways, Help: "`URL` of the OTLP collector that gets the spans, such as http://localhost:4318; empty: none",
			field: func(c *Config) any { return &c.Protocol.Trace }, check: func(c *Config) error { return tracing.CheckEndpoint(c.Protocol.Trace) }},
		{Name: "protocol.trace_rate", Default: 0.01, Readers: ofLastingGateways,
			Help:  "`share` of the requests that are traced although their client does not trace them; clients change it at /v2/trace/setting",
			field: func(c *Config) any { return &c.Protocol.TraceRate }, check: func(c *Config) error { return tracing.CheckRate(c.Protocol.TraceRate) }},
		{Name: "protocol.strict_readiness", Default: false, Readers: ofLastingGateways, Help: "report not ready while any backend cannot serve one of its models",
			field: func(c *Config) any { return &c.Protocol.StrictReadiness }},
	}},
}

// Check returns all problems at once, each with the knob, the value and what is allowed.
func (c Config) Check() error {
	var errs []error
	for k := range knobs() {
		if k.check == nil {
			continue
		}
		if err := k.check(&c); err != nil {
			errs = append(errs, fmt.Errorf("config: %s: %w", k.Name, err))
		}
	}
	return errors.Join(errs...)
}

// refusedValue returns the error about a value that is not allowed.
func refusedValue(value any, want string) error {
	if text, ok := value.(string); ok {
		value = fmt.Sprintf("%.100q", text)
	}
	return fmt.Errorf("%v is not allowed: want %s", value, want)
}

func checkOneOf(value string, allowed ...string) error {
	if !slices.Contains(allowed, value) {
		return refusedValue(value, "one of "+strings.Join(allowed, ", "))
	}
	return nil
}

func checkRange[T int | float64 | time.Duration](value, least, most T) error {
	if !(value >= least && value <= most) { // false for NaN, too
		return refusedValue(value, fmt.Sprintf("%v to %v", least, most))
	}
	return nil
}

func checkModels(c *Config) error {
	if c.Models == "" {
		return refusedValue("", "a directory")
	}
	return nil
}

func checkSchedulers(c *Config) error {
	for addr := range strings.SplitSeq(c.Scheduler, ",") {
		if err := checkAddress(strings.TrimSpace(addr)); err != nil {
			return err
		}
	}
	return nil
}

func checkTLSName(c *Config) error {
	if name := c.Cluster.TLSName; len(name) > 253 || strings.ContainsAny(name, " /:") {
		return refusedValue(name, "a host name of at most 253 characters, without a port")
	}
	return nil
}

// checkEpoch refuses epochs that are too short for loads to finish.
func checkEpoch(c *Config) error {
	// Loads take seconds, and rates are means over an epoch.
	if e := c.Cluster.Epoch; e != 0 && (e < 10*time.Second || e > 24*time.Hour) {
		return fmt.Errorf("%v is not allowed: want 0 (only when an operator applies a plan), or 10s to 24h", e)
	}
	return nil
}

func checkElection(c *Config) error {
	if _, err := c.Cluster.ElectionURL(); err != nil {
		return fmt.Errorf("%.100q is not allowed: %w", c.Cluster.Election, err)
	}
	return nil
}

func checkFloors(c *Config) error {
	_, err := c.Accuracy.ByFamily()
	return err
}

func checkServerName(c *Config) error {
	if name := c.Protocol.ServerName; name == "" || len(name) > 256 {
		return refusedValue(name, "1 to 256 bytes")
	}
	return nil
}

// checkExplicit refuses a value that has no effect unless clients load and unload models.
func (c *Config) checkExplicit(value string) error {
	if value != "" && c.Repository.ModelControl != "explicit" {
		return refusedValue(value, "none, or model_control explicit")
	}
	return nil
}
