//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev"
	"downbeat.dev/bench/load"
	"downbeat.dev/core/arrivals"
	"downbeat.dev/deploy"
)

// echoModel is an emulated model that takes little time.
const echoModel = `name: "echo"
platform: "emulated"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.1" } }
parameters { key: "beta_ms" value { string_value: "0.5" } }
parameters { key: "slo_ms" value { string_value: "2000" } }
`

func repository(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "models")
	if err := os.MkdirAll(filepath.Join(dir, "echo"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "echo", "config.pbtxt"), []byte(echoModel), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// config is a deployment on free ports.
func config(t *testing.T) deploy.Config {
	c := deploy.Default()
	c.HTTP, c.GRPC, c.Models, c.Emulate, c.LogLevel = "127.0.0.1:0", "127.0.0.1:0", repository(t), 2, "error"
	return c
}

// TestEveryCommandExplainsItself: --help of every word works and starts nothing.
func TestEveryCommandExplainsItself(t *testing.T) {
	for _, c := range slices.Concat(commands(), benches(), planners(), canaryWords()) {
		if c.summary == "" || strings.Contains(c.name, " ") {
			t.Errorf("%q has no summary, or two words", c.name)
		}
		if err := silently(t, func() error { return c.run(t.Context(), []string{"--help"}) }); err != nil && !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%s --help: %v", c.name, err)
		}
		if c.name == "models" || c.name == "bench" || c.name == "plan" || c.name == "canary" {
			continue // words of their own
		}
		if err := c.run(t.Context(), []string{"-nonsense"}); err == nil || !strings.Contains(err.Error(), "downbeat") {
			t.Errorf("%s -nonsense: got %v, want an error that says where the help is", c.name, err)
		}
	}
}

// TestHelpIntroducesCommands: a command's help begins with what it does, also where its name is that of a group.
func TestHelpIntroducesCommands(t *testing.T) {
	for path, all := range map[string][]command{"downbeat bench": benches(), "downbeat plan": planners(), "downbeat canary": canaryWords()} {
		for _, c := range all {
			var b strings.Builder
			introduceCommand(&b, path, c, nil)
			if !strings.Contains(b.String(), c.summary) || !strings.Contains(b.String(), "  "+path+" "+c.name) {
				t.Errorf("%s %s: help begins with %q, want its summary and an example", path, c.name, b.String())
			}
		}
	}

	var b strings.Builder
	introduceCommand(&b, "downbeat", command{name: "demo", summary: "the demo"}, []string{"drift", "-h"})
	if !strings.HasPrefix(b.String(), "downbeat demo drift: "+driftSummary) || strings.Contains(b.String(), "demo -emulate") {
		t.Errorf("help of demo drift begins with %q", b.String())
	}
}

// TestHelpOfTheFile: "help config" is no command's help.
func TestHelpOfTheFile(t *testing.T) {
	if err := silently(t, func() error { return runLine(t.Context(), []string{"help", "config"}) }); err != nil {
		t.Error(err)
	}
	if err := silently(t, func() error { return runLine(t.Context(), []string{"help", "confog"}) }); !errors.Is(err, errUsage) {
		t.Errorf("help of an unknown word: %v", err)
	}
}

// TestExamplesParse: what help shows can be typed. Words after the flags would end their parsing.
func TestExamplesParse(t *testing.T) {
	trailing := map[string]int{"downbeat infer": 2, "downbeat rollback": 2, "downbeat profile": -1}
	file := filepath.Join(t.TempDir(), "downbeat.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	name := strings.NewReplacer("/etc/downbeat/downbeat.yaml", file, "downbeat.yaml", file)
	words := append(commands(), command{name: "bench", run: benchCommand().run}, command{name: "models", run: modelsCommand().run})
	for full, lines := range examples {
		for _, line := range lines {
			line, _, _ = strings.Cut(line, "   ")
			args := strings.Fields(name.Replace(line))[1:]
			at := len(args) - max(0, trailing[full])
			if trailing[full] < 0 && !strings.HasPrefix(args[at-1], "-") && args[at-2] == "-dry-run" {
				at--
			}
			args = slices.Insert(args, at, "-h")
			i := slices.IndexFunc(words, func(c command) bool { return c.name == args[0] })
			if i < 0 || !strings.HasPrefix(line, full) {
				t.Errorf("%s: %s: no such command", full, line)
				continue
			}
			if err := silently(t, func() error { return words[i].run(t.Context(), args[1:]) }); !errors.Is(err, flag.ErrHelp) {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
}

func TestExitCodes(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, tc := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{t.Context(), nil, 0},
		{t.Context(), flag.ErrHelp, 0},
		{t.Context(), errors.New("x"), 1},
		{t.Context(), fmt.Errorf("y: %w", deploy.UsageError("x")), 2},
		{stopped, nil, 0},
		{stopped, context.Canceled, 130},
		{stopped, errors.New("peer lost"), 130},
	} {
		if got := exitCode(tc.ctx, tc.err); got != tc.want {
			t.Errorf("%v: exit code %d, want %d", tc.err, got, tc.want)
		}
	}
}

// TestDriftNeedsItsModel: a directory without the model is named before the pictures are rendered.
func TestDriftNeedsItsModel(t *testing.T) {
	dir := t.TempDir()
	err := silently(t, func() error { return runLine(t.Context(), []string{"demo", "drift", "-models", dir}) })
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a directory without models: %v", err)
	}
}

// silently runs f without its standard output.
func silently(t *testing.T, f func() error) error {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	old := os.Stdout
	os.Stdout = null
	defer func() { os.Stdout = old }()
	return f()
}

func TestUnknownWordsAreRefused(t *testing.T) {
	err := runNamed(t.Context(), "downbeat", commands(), []string{"sevre"}, func(io.Writer) {})
	if !errors.Is(err, errUsage) {
		t.Errorf("got %v", err)
	}
	for name, args := range map[string][]string{
		"serve":   {"extra"},
		"load":    {"-rate", "NaN"},
		"infer":   {"one-word"},
		"demo":    {"-duration", "-1s"},
		"check":   {"extra"},
		"version": {"extra"},
		"net":     {"-for", "-1s"},
		"backend": {"-cores", "a"},
		"profile": {"-core", "-7"},
	} {
		for _, c := range commands() {
			if c.name != name {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := c.run(ctx, args); err == nil || ctx.Err() != nil {
				t.Errorf("%s %v: got %v, want an error at once", name, args, err)
			}
			cancel()
		}
	}
}

func TestCoreList(t *testing.T) {
	if got, err := coreList("3, 1"); err != nil || len(got) != 2 || got[0] != 3 || got[1] != 1 {
		t.Errorf("3, 1: %v, %v", got, err)
	}
	if _, err := coreList("1,2,1"); err == nil || !strings.Contains(err.Error(), "core 1") {
		t.Errorf("a core twice: %v", err)
	}
}

// served is a whole deployment in this process.
func served(t *testing.T) *downbeat.System {
	t.Helper()
	return servedWith(t, config(t))
}

// servedWith is served with a configuration of one's own.
func servedWith(t *testing.T, c deploy.Config) *downbeat.System {
	t.Helper()
	c.Listen = "127.0.0.1:0"
	return started(t, c, downbeat.Scheduler|downbeat.Backend|downbeat.Gateway)
}

// started runs some parts until the test ends.
func started(t testing.TB, c deploy.Config, roles downbeat.Role) *downbeat.System {
	t.Helper()
	s, err := downbeat.Start(t.Context(), downbeat.Config{Config: c, Roles: roles, Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// waitFor waits until what happens by itself has happened.
func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen within a minute")
		}
	}
}

// offer sends load to the parts as `downbeat load` does.
func offer(t *testing.T, s *downbeat.System, f loadFlags) *load.Report {
	t.Helper()
	o, err := f.options(s.Client())
	if err != nil {
		t.Fatal(err)
	}
	target, err := newTarget(s, o, 1)
	if err != nil {
		t.Fatal(err)
	}
	return load.Run(t.Context(), target, o)
}

// TestServeLoadInfer runs the main job in one process: every request is accounted for.
func TestServeLoadInfer(t *testing.T) {
	s := served(t)
	f := loadFlags{shape: arrivals.Shape{Arrivals: "poisson", Popularity: "even", Rate: 100, Span: time.Second, Seed: 1}}
	r := offer(t, s, f)
	if r.Sent() < 50 || r.Ended() != r.Sent() || meanBatch(s.BatchSizes("echo"), nil) < 1 {
		t.Errorf("sent %d, ended %d, mean batch %v", r.Sent(), r.Ended(), meanBatch(s.BatchSizes("echo"), nil))
	}
	if _, counts := r.Outcomes(); counts[load.Served] == 0 {
		t.Errorf("nothing was served: %v", counts)
	}
	file := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(file, make([]byte, 15), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := inferOnce(t.Context(), s.Client(), "echo", file, 0); err == nil || !strings.Contains(err.Error(), "takes 16 bytes") {
		t.Errorf("15 bytes: got %v", err)
	}
	if err := inferOnce(t.Context(), s.Client(), "ehco", file, 0); err == nil || !strings.Contains(err.Error(), "the models are echo") {
		t.Errorf("unknown model: got %v", err)
	}
}
