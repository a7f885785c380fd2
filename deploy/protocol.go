package deploy

// Protocol is the section of what clients of the gateway see beyond the Open Inference Protocol's plain calls.
// Its zero value is not its default: see Default.
type Protocol struct {
	ServerName string `yaml:"server_name"` // gateway: what server metadata reports; some clients compare it with "triton"
	// gateway: not ready while a model cannot be served
	StrictReadiness bool `yaml:"strict_readiness"`
	// backend: every model needs a config.pbtxt that describes it in full
	StrictModels bool `yaml:"strict_models"`
	// gateway: the OTLP collector that spans go to, such as http://localhost:4318; empty: none
	Trace string `yaml:"trace"`
	// gateway: share of the requests without a trace of their own that are traced
	TraceRate float64 `yaml:"trace_rate"`
	// gateway: a file of clients with a token and limits each; empty: the secret of token_file opens the API
	ClientTokensFile string `yaml:"client_tokens_file"`
	// gateway: a file of headers that classes of endpoints ask for; empty: none does
	RestrictedFile string `yaml:"restricted_file"`
	// gateway: a log line for every inference call
	AccessLog bool `yaml:"access_log"`
	// metrics under Triton's names, too; a backend's are power and memory of its GPUs
	TritonMetrics bool `yaml:"triton_metrics"`
	ClientSHM     bool `yaml:"client_shm"` // gateway: clients of this host may keep tensors in shared memory objects of the gateway's user
}
