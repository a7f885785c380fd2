package deploy

// Protocol is the section of what clients of the gateway see beyond the plain calls of the Open Inference Protocol.
// Its zero value is not its default: see Default.
type Protocol struct {
	ServerName string `yaml:"server_name"` // gateway: reported in server metadata; some clients compare it with "triton"
	// gateway: not ready while a model cannot be served
	StrictReadiness bool `yaml:"strict_readiness"`
	// backend: every model needs a config.pbtxt that describes it in full
	StrictModels bool `yaml:"strict_models"`
	// gateway: URL of the OTLP collector for spans, such as http://localhost:4318; empty: none
	Trace string `yaml:"trace"`
	// gateway: share of requests without a trace of their own that are traced
	TraceRate float64 `yaml:"trace_rate"`
	// gateway: file of clients, each with a token and limits; empty: the secret of token_file opens the API
	ClientTokensFile string `yaml:"client_tokens_file"`
	// gateway: file of headers that classes of endpoints require; empty: none
	RestrictedFile string `yaml:"restricted_file"`
	// gateway: log a line for every inference call
	AccessLog bool `yaml:"access_log"`
	// also publish metrics under Triton's names; on a backend, the power and memory of its GPUs
	TritonMetrics bool `yaml:"triton_metrics"`
	ClientSHM     bool `yaml:"client_shm"` // gateway: clients on this host may keep tensors in shared memory objects of the gateway's user
}
