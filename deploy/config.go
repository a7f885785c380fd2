// Package deploy holds what a deployment sets: one YAML file plus flags, and one table of knobs, Rooms, at most fifteen for a
// room, checked before anything starts. It starts nothing itself.
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

// Config is everything that a deployment may set; Rooms has a row for each field.
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
	// LearnShare is the scheduler's: the share of GPU time that learners buy from families of variants; 0: idle time only.
	LearnShare float64 `yaml:"learn_share"`
	QueueMax   int     `yaml:"queue_max"` // requests queued per model before new ones are rejected
	LogLevel   string  `yaml:"log_level"` // debug, info, warn or error
	LogRooms   string  `yaml:"log_rooms"` // levels of single rooms, such as rdma=debug

	Cluster  Cluster  `yaml:"cluster"`  // what holds several hosts together
	Protocol Protocol `yaml:"protocol"` // what clients of the gateway see beyond its plain calls

	Repository Repository `yaml:"repository"` // which models a backend loads, and when
	Accuracy   Accuracy   `yaml:"accuracy"`   // of families of models
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
		return c, fmt.Errorf("config %s: %s", path, unknownKey.ReplaceAllStringFunc(err.Error(), nameKeys))
	}
	return c, nil
}

// unknownKey is how package yaml says it, with the key and the type of its section.
var unknownKey = regexp.MustCompile(`field (\S+) not found in type deploy\.(\w+)`)

// nameKeys says what yaml said of an unknown key with the keys that there are.
func nameKeys(text string) string {
	said := unknownKey.FindStringSubmatch(text)
	return said[1] + ": no such key; the keys are " + strings.Join(configKeys(strings.ToLower(said[2])), ", ")
}

// configKeys are what a section of a file may hold, in the order of its type. The section config is the file itself.
func configKeys(section string) []string {
	var all []string

	// What is written for an empty configuration has every key, in order; those of a section are indented.
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

	// A command has the flags of the knobs that it reads; any other is refused by name.
	c.registerFlags(fs, command)
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

// CheckListener refuses what is no address, and one beyond loopback that asks nobody for a secret. The error names the field.
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

	// Beyond loopback anybody could connect: the parts must know each other by a secret.
	if !isLoopback(addr) && c.TokenFile == "" {
		return fmt.Errorf("%q leaves this host: set token_file (and tls) as well", addr)
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
