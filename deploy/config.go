// Package deploy holds a deployment's configuration: one YAML file plus flags, and the table of all knobs, Rooms,
// with at most fifteen knobs per room. It checks the configuration before anything starts, and starts nothing itself.
package deploy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
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
	Executors int     `yaml:"executors"`  // ONNX Runtime executors per backend, Threads cores each; 0: they have half the cores
	Threads   int     `yaml:"threads"`    // of each ONNX Runtime executor
	Lanes     int     `yaml:"lanes"`      // equal parts of each GPU or executor
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

// UsageError is an invalid command line: an unknown flag, a wrong value, or an unexpected argument.
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
			return "", UsageError("flag -config: a file name must follow")
		}
		return value, nil
	}
	return "", nil
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
