// Package deploy holds what a deployment sets: one YAML file plus flags, fifteen knobs and
// sections on the cluster, the protocol and the repository, checked before anything starts. It starts nothing itself.
package deploy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// Config is everything that a deployment may set. Constants that no two deployments would set
// differently live beside the code that uses them.
type Config struct {
	Listen    string  `yaml:"listen"`     // scheduler: where frontends and backends connect
	Scheduler string  `yaml:"scheduler"`  // backend, gateway, tools: the scheduler to connect to, or all of the cluster, separated by commas
	HTTP      string  `yaml:"http"`       // gateway: REST, metrics and the page
	GRPC      string  `yaml:"grpc"`       // gateway: gRPC
	Data      string  `yaml:"data"`       // data plane listener of frontends and backends
	Provider  string  `yaml:"provider"`   // data plane: auto, verbs, shm or tcp
	Models    string  `yaml:"models"`     // the model repository
	Executors int     `yaml:"executors"`  // ONNX Runtime executors per backend, one core each; 0: one per two cores
	Emulate   int     `yaml:"emulate"`    // emulated GPUs per backend instead of ONNX Runtime; 0: none
	GPU       bool    `yaml:"gpu"`        // run models on the backend's GPUs; ONNX Runtime for what they do not support
	TokenFile string  `yaml:"token_file"` // a file holding the secret that all parts share
	TLS       string  `yaml:"tls"`        // a directory with tls.crt, tls.key and ca.crt; empty: no TLS
	Prompt    float64 `yaml:"prompt"`     // scheduler: share of the GPUs in demand below which batches start at once; 0: always defer
	QueueMax  int     `yaml:"queue_max"`  // requests queued per model before new ones are rejected
	LogLevel  string  `yaml:"log_level"`  // debug, info, warn or error

	Cluster  Cluster  `yaml:"cluster"`  // what holds several hosts together
	Protocol Protocol `yaml:"protocol"` // what clients of the gateway see beyond its plain calls

	Repository Repository `yaml:"repository"` // which models a backend loads, and when
	Accuracy   Accuracy   `yaml:"accuracy"`   // of families of models
}

// Default returns the configuration of one machine on loopback.
func Default() Config {
	return Config{
		Listen:    "127.0.0.1:7070",
		Scheduler: "127.0.0.1:7070",
		HTTP:      "127.0.0.1:8000",
		GRPC:      "127.0.0.1:8001",
		Data:      "127.0.0.1:0",
		Provider:  "auto",
		Models:    "models",
		Prompt:    0.3,
		QueueMax:  100_000,
		LogLevel:  "info",
		Cluster:   Cluster{SessionSpare: 1},
		Protocol:  DefaultProtocol(),

		Repository: DefaultRepository(),
	}
}

// fileSizeMax bounds what is read as a configuration or a secret.
const fileSizeMax = 1 << 20

// Load reads a YAML file over the defaults. Unknown and doubled keys are errors that name the line.
func Load(path string) (Config, error) {
	c := Default()
	text, err := readBounded(path)
	if err != nil {
		return c, fmt.Errorf("config: %w", err)
	}

	// A key that is not known is a mistyped one, which would have no effect.
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)

	// An empty file, which ends at once, is a configuration, too.
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("config %s: %s", path, unknownKey.ReplaceAllString(err.Error(), `$1: no such key; the keys are `+strings.Join(configKeys(), ", ")))
	}
	return c, nil
}

// unknownKey is how package yaml says it.
var unknownKey = regexp.MustCompile(`field (\S+) not found in type deploy\.(?:Config|Cluster|Protocol|Repository)`)

// configKeys are what a file may hold, in the order of Config.
func configKeys() []string {
	var all []string

	// What is written for an empty configuration has every key, in order.
	for line := range strings.Lines(Config{}.YAML()) {
		if key, _, _ := strings.Cut(line, ":"); !strings.HasPrefix(key, " ") { // not within a section
			all = append(all, key)
		}
	}
	return all
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	// One byte more than is allowed tells that there is more.
	text, err := io.ReadAll(io.LimitReader(f, fileSizeMax+1))
	if err != nil {
		return nil, err
	}
	if len(text) > fileSizeMax {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, fileSizeMax)
	}
	return text, nil
}

// readers names the commands that read a knob. The others have no flag for it: one that is ignored
// deceives. All read token-file, tls and log-level; the file may hold every knob for any command.
var readers = map[string][]string{
	"listen":    {"serve", "scheduler"},
	"scheduler": {"scheduler", "backend", "gateway", "infer", "load"},
	"http":      {"demo", "serve", "gateway"},
	"grpc":      {"demo", "serve", "gateway"},
	"data":      {"demo", "serve", "backend", "gateway", "infer", "load"},
	"provider":  {"demo", "serve", "backend", "gateway", "infer", "load"},
	"models":    {"demo", "serve", "backend", "infer"},
	"executors": {"demo", "serve", "backend"},
	"emulate":   {"demo", "serve", "backend"},
	"gpu":       {"demo", "serve", "backend"},
	"prompt":    {"demo", "serve", "scheduler"},
	"queue-max": {"demo", "serve", "scheduler"},
}

// registerFlags registers a flag for each knob, with the present value as the default.
func (c *Config) registerFlags(fs *flag.FlagSet) {
	fs.StringVar(&c.Listen, "listen", c.Listen, "scheduler `address` that frontends and backends connect to")
	fs.StringVar(&c.Scheduler, "scheduler", c.Scheduler, "`address` of the scheduler to connect to; several, separated by commas, where some stand by")
	fs.StringVar(&c.HTTP, "http", c.HTTP, "gateway `address` for REST, /metrics and the page")
	fs.StringVar(&c.GRPC, "grpc", c.GRPC, "gateway `address` for gRPC")
	fs.StringVar(&c.Data, "data", c.Data, "data plane listen `address`")
	fs.StringVar(&c.Provider, "provider", c.Provider, "data plane `provider`: auto, verbs, shm or tcp")
	fs.StringVar(&c.Models, "models", c.Models, "model repository `directory`")
	fs.IntVar(&c.Executors, "executors", c.Executors, "ONNX Runtime executors, one core each; 0: one per two cores")
	fs.IntVar(&c.Emulate, "emulate", c.Emulate, "emulated GPUs instead of ONNX Runtime; 0: none")
	fs.BoolVar(&c.GPU, "gpu", c.GPU, "run models on this host's GPUs (a binary built with the tag cuda)")
	fs.StringVar(&c.TokenFile, "token-file", c.TokenFile, "`file` with the secret that all parts share")
	fs.StringVar(&c.TLS, "tls", c.TLS, "`directory` with tls.crt, tls.key and ca.crt; empty: no TLS")
	fs.Float64Var(&c.Prompt, "prompt", c.Prompt, "`share` of the GPUs in demand below which batches start at once; 0: always defer")
	fs.IntVar(&c.QueueMax, "queue-max", c.QueueMax, "requests queued per model before new ones are rejected")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "`level`: debug, info, warn or error")

	c.Cluster.registerFlags(fs)
	c.Protocol.registerFlags(fs)
	c.Repository.registerFlags(fs)
	c.Accuracy.registerFlags(fs)
}

// Parse reads flags over the file that -config names (or the defaults), and checks the result.
// command says which knobs have a flag; extra registers the command's own. It returns the words
// after the flags.
func Parse(command string, args []string, extra func(*flag.FlagSet)) (Config, []string, error) {
	path, err := configPath(args)
	if err != nil {
		return Config{}, nil, err
	}

	// The file comes first: flags win over it, so its values are their defaults.
	c := Default()
	if path != "" {
		if c, err = Load(path); err != nil {
			return c, nil, err
		}
	}

	fs := flag.NewFlagSet("downbeat "+command, flag.ContinueOnError)
	// configPath has read it already: here it only has its place in the help.
	fs.String("config", path, "YAML `file`; flags win over it")

	// A command has the flags of the fields that it reads; any other is refused by name.
	all := flag.NewFlagSet("", flag.ContinueOnError)
	c.registerFlags(all)
	all.VisitAll(func(f *flag.Flag) {
		by, some := readers[f.Name]
		for _, section := range []map[string][]string{clusterReaders, protocolReaders, repositoryReaders, accuracyReaders} {
			if of, has := section[f.Name]; has {
				by, some = of, true
			}
		}
		if !some || slices.Contains(by, command) {
			fs.Var(f.Value, f.Name, f.Usage)
		}
	})

	if extra != nil {
		extra(fs)
	}
	if err := ParseFlags(fs, args); err != nil {
		return c, nil, err
	}
	return c, fs.Args(), c.Check()
}

// UsageError is a command line that says nothing: unknown flags, or words where none belong.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// ParseFlags parses a command's flags. Help goes to standard output; anything else that is wrong is
// one error, which says what is allowed and where the help is.
func ParseFlags(fs *flag.FlagSet, args []string) error {
	// Package flag writes as it fails; what is said is decided here.
	var said bytes.Buffer
	fs.SetOutput(&said)
	err := fs.Parse(args)

	switch {
	case errors.Is(err, flag.ErrHelp):
		text := said.String()
		if flags, usual := strings.CutPrefix(text, "Usage of "+fs.Name()+":\n"); usual && flags != "" {
			text = "Usage: " + fs.Name() + " [flags]\n\n" + flags
		} else if usual {
			text = "Usage: " + fs.Name() + "\n"
		}
		_, _ = os.Stdout.WriteString(text) // a closed pipe ends the process
	case err != nil:
		err = UsageError(fmt.Sprintf("%v%s; %s -h lists the flags", err, allowedText(fs, err.Error()), fs.Name()))
	}
	return err
}

// allowedText says what the flag that an error of package flag names takes.
func allowedText(fs *flag.FlagSet, text string) string {
	want := ""
	fs.VisitAll(func(f *flag.Flag) {
		// Package flag names the flag nowhere but in its text.
		if !strings.Contains(text, " for flag -"+f.Name+":") {
			return
		}

		switch f.Value.(flag.Getter).Get().(type) {
		case time.Duration:
			want = ": want a duration such as 1.5s or 20ms"
		case int:
			want = ": want a whole number"
		case uint64:
			want = ": want a whole number, 0 or more"
		case float64:
			want = ": want a number"
		}
	})
	return want
}

// configPath finds -config before the other flags are parsed, since they override the file.
func configPath(args []string) (string, error) {
	for i, a := range args {
		// One dash or two, and the value behind = or in the next word, as package flag reads them.
		key, value, inline := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(a, "-"), "-"), "=")
		if a == "--" {
			// What follows are words.
			break
		}
		if !strings.HasPrefix(a, "-") || key != "config" {
			continue
		}

		if !inline && i+1 < len(args) {
			value = args[i+1]
		}
		if value == "" {
			return "", errors.New("flag -config: a file name must follow")
		}
		return value, nil
	}
	return "", nil
}

// Check returns every problem at once, each naming the field, the value and what is allowed.
func (c Config) Check() error {
	// Everything that is wrong is said at once, so that a file is mended in one go.
	var errs []error
	bad := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("config: %s: %v is not allowed: %s", field, value, allowed))
	}

	for addr := range strings.SplitSeq(c.Scheduler, ",") {
		errs = append(errs, checkAddress("scheduler", strings.TrimSpace(addr)))
	}
	for _, l := range c.listeners() {
		errs = append(errs, c.CheckListener(l.field, l.addr))
	}

	if allowed := []string{"auto", "verbs", "shm", "tcp"}; !slices.Contains(allowed, c.Provider) {
		bad("provider", fmt.Sprintf("%q", c.Provider), "want one of "+strings.Join(allowed, ", "))
	}
	if allowed := []string{"debug", "info", "warn", "error"}; !slices.Contains(allowed, c.LogLevel) {
		bad("log_level", fmt.Sprintf("%q", c.LogLevel), "want one of "+strings.Join(allowed, ", "))
	}

	if c.Models == "" {
		bad("models", `""`, "want a directory")
	}
	if c.Executors < 0 || c.Executors > 1024 {
		bad("executors", c.Executors, "want 0 to 1024")
	}
	if c.Emulate < 0 || c.Emulate > 1024 {
		bad("emulate", c.Emulate, "want 0 to 1024")
	}
	if c.QueueMax < 1 || c.QueueMax > 100_000_000 {
		bad("queue_max", c.QueueMax, "want 1 to 100000000")
	}
	if !(c.Prompt >= 0 && c.Prompt <= 1) {
		bad("prompt", c.Prompt, "want 0 to 1")
	}

	return errors.Join(slices.Concat(errs, c.Cluster.checkFields(), c.Protocol.checkFields(), c.Repository.checkFields(), c.Accuracy.checkFields())...)
}

type listener struct{ field, addr string }

func (c Config) listeners() []listener {
	return []listener{{"listen", c.Listen}, {"http", c.HTTP}, {"grpc", c.GRPC}, {"data", c.Data}}
}

func checkAddress(field, addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("config: %s: %q is not allowed: want host:port, the port from 0 to 65535", field, addr)
	}
	return nil
}

// CheckListener refuses what is no address, and one beyond loopback that asks nobody for a secret.
func (c Config) CheckListener(field, addr string) error {
	if err := checkAddress(field, addr); err != nil {
		return err
	}

	// Beyond loopback anybody could connect: the parts must know each other by a secret.
	if !isLoopback(addr) && c.TokenFile == "" {
		return fmt.Errorf("config: %s: %q leaves this host: set token_file (and tls) as well", field, addr)
	}
	return nil
}

// Exposed names those of the listeners called fields that other hosts can reach. metrics is the address of its own for
// metrics; empty: none.
func (c Config) Exposed(fields []string, metrics string) []string {
	var all []string
	for _, l := range c.listeners() {
		if slices.Contains(fields, l.field) && l.addr != "" && !isLoopback(l.addr) {
			all = append(all, l.field)
		}
	}
	if metrics != "" && !isLoopback(metrics) {
		all = append(all, "metrics")
	}
	return all
}

func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)

	// A host that is left out stands for all addresses of this machine.
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Token reads the shared secret; empty when none is set. Surrounding white space does not count.
func (c Config) Token() (string, error) {
	if c.TokenFile == "" {
		return "", nil
	}

	text, err := readBounded(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("token_file: %w", err)
	}

	// Editors leave a newline at the end.
	token := strings.TrimSpace(string(text))
	if len(token) < 16 || len(token) > 256 {
		return "", fmt.Errorf("token_file %s: the secret has %d characters, want 16 to 256", c.TokenFile, len(token))
	}
	return token, nil
}

// YAML returns the configuration in force, as a file that Load reads back.
func (c Config) YAML() string {
	text, err := yaml.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
