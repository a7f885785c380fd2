package deploy

import (
	"flag"
	"fmt"

	"downbeat.dev/core/observe/tracing"
)

// Protocol is the section of what clients of the gateway see beyond the Open Inference Protocol's plain calls.
// Its zero value is not its default: see DefaultProtocol.
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
	// gateway: metrics under Triton's names, too
	TritonMetrics bool `yaml:"triton_metrics"`
	ClientSHM     bool `yaml:"client_shm"` // gateway: clients of this host may keep tensors in shared memory objects of the gateway's user
}

// DefaultProtocol is the section as it is without a file.
func DefaultProtocol() Protocol { return Protocol{ServerName: "downbeat", TraceRate: 0.01} }

// protocolReaders is readers for the section.
var protocolReaders = map[string][]string{
	"server-name":        {"demo", "serve", "gateway"},
	"client-shm":         {"demo", "serve", "gateway"},
	"client-tokens-file": {"serve", "gateway"},
	"restricted-file":    {"serve", "gateway"},
	"triton-metrics":     {"serve", "gateway"},
	"trace":              {"serve", "gateway"},
	"trace-rate":         {"serve", "gateway"},
	"access-log":         {"serve", "gateway"},
	"strict-readiness":   {"serve", "gateway"},
	"strict-models":      {"serve", "backend"},
}

// registerFlags registers a flag for each knob of the section.
func (p *Protocol) registerFlags(fs *flag.FlagSet) {
	fs.StringVar(&p.ServerName, "server-name", p.ServerName, "`name` that server metadata reports")
	fs.StringVar(&p.ClientTokensFile, "client-tokens-file", p.ClientTokensFile, "`file` of clients with a token and limits each; empty: the secret of token-file opens the API")
	fs.StringVar(&p.RestrictedFile, "restricted-file", p.RestrictedFile, "`file` of headers that classes of endpoints ask for; empty: none does")
	fs.StringVar(&p.Trace, "trace", p.Trace, "`URL` of the OTLP collector that spans go to; empty: none")
	fs.Float64Var(&p.TraceRate, "trace-rate", p.TraceRate, "`share` of the requests without a trace of their own that are traced")
	fs.BoolVar(&p.TritonMetrics, "triton-metrics", p.TritonMetrics, "show metrics under Triton's names, nv_inference_count and so on, too")
	fs.BoolVar(&p.AccessLog, "access-log", p.AccessLog, "a log line for every inference call")
	fs.BoolVar(&p.StrictReadiness, "strict-readiness", p.StrictReadiness, "not ready while a model cannot be served")
	fs.BoolVar(&p.StrictModels, "strict-models", p.StrictModels, "every model needs a config.pbtxt that describes it in full")
	fs.BoolVar(&p.ClientSHM, "client-shm", p.ClientSHM, "let clients of this host keep tensors in shared memory objects of the gateway's user")
}

// checkFields returns what is wrong with the section.
func (p Protocol) checkFields() (errs []error) {
	if p.ServerName == "" || len(p.ServerName) > 256 {
		errs = append(errs, fmt.Errorf("config: protocol.server_name: %.20q is not allowed: want 1 to 256 bytes", p.ServerName))
	}

	if err := tracing.Check(p.Trace, p.TraceRate); err != nil {
		errs = append(errs, fmt.Errorf("config: protocol.%w", err))
	}
	return errs
}
