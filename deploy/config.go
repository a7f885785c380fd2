// Package deploy holds a deployment's configuration: one YAML file plus flags, and the table of all knobs, Rooms,
// with at most fifteen knobs per room. It checks the configuration before anything starts, and starts nothing itself.
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

// Config is the configuration of a deployment; Rooms has a row for each field.
type Config struct {
	Listen    string  `yaml:"listen"`     // scheduler: listen address for frontends and backends
	Scheduler string  `yaml:"scheduler"`  // backend, gateway, tools: the scheduler to connect to, or all of the cluster, separated by commas
	HTTP      string  `yaml:"http"`       // gateway: REST, metrics and the page
	GRPC      string  `yaml:"grpc"`       // gateway: gRPC
	Data      string  `yaml:"data"`       // data plane listen address of frontends and backends
	Provider  string  `yaml:"provider"`   // data plane: auto, verbs, shm or tcp
	Models    string  `yaml:"models"`     // the model repository
	Executors int     `yaml:"executors"`  // ONNX Runtime executors per backend, one core each; 0: one per two cores
	Emulate   int     `yaml:"emulate"`    // emulated GPUs per backend instead of ONNX Runtime; 0: none
	GPU       bool    `yaml:"gpu"`        // run models on the backend's GPUs; ONNX Runtime runs models that the GPUs do not support
	TokenFile string  `yaml:"token_file"` // a file holding the secret that all parts share
	TLS       string  `yaml:"tls"`        // a directory with tls.crt, tls.key and ca.crt; empty: no TLS
	Prompt    float64 `yaml:"prompt"`     // scheduler: share of the GPUs in demand below which batches start at once; 0: always defer
	// LearnShare, of the scheduler, is the share of GPU time that learners buy from families of variants; 0: only
	// idle time.
	LearnShare float64 `yaml:"learn_share"`
	QueueMax   int     `yaml:"queue_max"` // requests queued per model before new ones are rejected
	LogLevel   string  `yaml:"log_level"` // debug, info, warn or error
	LogRooms   string  `yaml:"log_rooms"` // levels of single rooms, such as rdma=debug

	Cluster  Cluster  `yaml:"cluster"`  // several hosts
	Protocol Protocol `yaml:"protocol"` // what clients of the gateway see beyond the protocol's plain calls

	Repository Repository `yaml:"repository"` // which models a backend loads, and when
	Accuracy   Accuracy   `yaml:"accuracy"`   // of families of models
}

// fileSizeMax bounds the size of a configuration or a secret.
const fileSizeMax = 1 << 20

// Load reads a YAML file over the defaults. Unknown and duplicate keys are errors that name the line.
func Load(path string) (Config, error) {
	c := Default()
	text, err := readBounded(path)
	if err != nil {
		return c, fmt.Errorf("config: %w", err)
	}

	// Refuse unknown keys: a mistyped key would have no effect.
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)

	// An empty file is a valid configuration; decoding it returns io.EOF.
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("config %s: %s", path, unknownKey.ReplaceAllStringFunc(err.Error(), nameKeys))
	}
	return c, nil
}

// unknownKey matches package yaml's error, with the key and the type of its section.
var unknownKey = regexp.MustCompile(`field (\S+) not found in type deploy\.(\w+)`)

// nameKeys adds the valid keys to package yaml's error about an unknown key.
func nameKeys(text string) string {
	said := unknownKey.FindStringSubmatch(text)
	return said[1] + ": no such key; the keys are " + strings.Join(configKeys(strings.ToLower(said[2])), ", ")
}

// configKeys returns the valid keys of a section, in the order of its type. The section config is the file itself.
func configKeys(section string) []string {
	var all []string

	// The YAML of an empty configuration has every key, in order; keys of a section are indented.
	within := "config"
	for line := range strings.Lines(Config{}.YAML()) {
		key, _, _ := strings.Cut(line, ":")
		switch inner := strings.TrimSpace(key); {
		case inner == key:
			within = key
			if section == "config" {
				all = append(all, key)
			}
		case within == section:
			all = append(all, inner)
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

	// Reading one byte more than the limit reveals a file that is too long.
	text, err := io.ReadAll(io.LimitReader(f, fileSizeMax+1))
	if err != nil {
		return nil, err
	}
	if len(text) > fileSizeMax {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, fileSizeMax)
	}
	return text, nil
}

// Parse reads flags over the file that -config names (or the defaults), and checks the result. command selects the
// knobs that have a flag; extra registers the command's own flags. Parse returns the arguments after the flags.
func Parse(command string, args []string, extra func(*flag.FlagSet)) (Config, []string, error) {
	path, err := configPath(args)
	if err != nil {
		return Config{}, nil, err
	}

	// Read the file first: its values are the defaults of the flags, which override it.
	c := Default()
	if path != "" {
		if c, err = Load(path); err != nil {
			return c, nil, err
		}
	}

	fs := flag.NewFlagSet("downbeat "+command, flag.ContinueOnError)
	// configPath has already read this flag; register it for the help text.
	fs.String("config", path, "YAML `file`; flags win over it")

	// A command has only flags for the knobs that it reads; any other flag is an error.
	c.registerFlags(fs, command)
	if extra != nil {
		extra(fs)
	}
	if err := ParseFlags(fs, args); err != nil {
		return c, nil, err
	}
	return c, fs.Args(), c.Check()
}

// UsageError is an invalid command line: an unknown flag, or an unexpected argument.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// ParseFlags parses a command's flags. It prints help to standard output. Any other problem is one error that says
// what is allowed and how to get help.
func ParseFlags(fs *flag.FlagSet, args []string) error {
	// Package flag prints its own messages; capture and replace them.
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

// allowedText returns the allowed values of the flag in package flag's error.
func allowedText(fs *flag.FlagSet, text string) string {
	want := ""
	fs.VisitAll(func(f *flag.Flag) {
		// Package flag names the flag only in its text.
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
		// As in package flag: one dash or two, and the value after = or in the next argument.
		key, value, inline := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(a, "-"), "-"), "=")
		if a == "--" {
			// The remaining arguments are not flags.
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

type listener struct{ field, addr string }

func (c Config) listeners() []listener {
	return []listener{{"listen", c.Listen}, {"http", c.HTTP}, {"grpc", c.GRPC}, {"data", c.Data}}
}

func checkAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return refusedValue(addr, "host:port, the port from 0 to 65535")
	}
	return nil
}

// CheckListener refuses an invalid address, and an address beyond loopback without a token file. The error names the
// field.
func (c Config) CheckListener(field, addr string) error {
	if err := c.checkListener(addr); err != nil {
		return fmt.Errorf("config: %s: %w", field, err)
	}
	return nil
}

func (c *Config) checkListener(addr string) error {
	if err := checkAddress(addr); err != nil {
		return err
	}

	// Beyond loopback anyone could connect, so the parts must authenticate with a secret.
	if !isLoopback(addr) && c.TokenFile == "" {
		return fmt.Errorf("%q leaves this host: set token_file (and tls) as well", addr)
	}
	return nil
}

// Exposed returns the names of the listeners in fields that other hosts can reach. metrics is the separate address
// for metrics; empty: none.
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

	// An empty host means all addresses of this machine.
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// Token reads the shared secret, without surrounding white space; empty if none is configured.
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

// YAML returns the configuration in force, as a file for Load.
func (c Config) YAML() string {
	text, err := yaml.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
