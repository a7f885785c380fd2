//go:build linux

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wrongValues are flags of each command that its own checks refuse. Package flag itself refuses what is no number and
// no duration.
var wrongValues = map[string][]string{
	"demo":      {"-duration 0s", "-rate -1", "-rate NaN", "-cameras -2", "-cameras 65", "-http nonsense"},
	"serve":     {"-queue-max -5", "-http nonsense", "-metrics nonsense"},
	"scheduler": {"-listen nonsense", "-metrics nonsense", "-election nonsense"},
	"backend":   {"-cores a", "-cores 1,1", "-fault nonsense", "-scheduler nonsense"},
	"gateway":   {"-trace-rate 2", "-metrics nonsense"},
	"infer":     {"-timeout 2h vehicle-s x", "vehicle-s"},
	"rollback":  {"vehicle-s", "-scheduler nonsense vehicle-s 1"},
	"explain":   {"-o xml", "-url nonsense"},
	"sessions":  {"-o xml", "-url nonsense", "-frames -1"},
	"load":      {"-slo 2h", "-rate 0", "-rate NaN", "-duration 0s", "-arrivals never", "-popularity none"},
	"net":       {"-o xml", "-for 0s", "-ports 0", "-pids a"},
	"chaos":     {"-o xml", "-repeats 0", "-limit -1s", "-only (", "-only nonsense"},
	"check":     {"-rate 0", "-hop 2s", "-models models -rate NaN"},
	"profile":   {"-rounds 0", "-core -7"},

	"models train":  {"-parallel 0", "-effort 0", "-only nonsense"},
	"models check":  {"-images -2"},
	"models readme": {"-images -1"},
	"models render": {"-n 0", "-conditions dusk"},

	"plan size":     {"", "-rate A", "-rate ResNet50=0", "-rate ResNet50=x", "-rate Nonsense=3", "-rate ResNet50=1 -o xml", "-rate ResNet50=1 -kind h100", "-rate ResNet50=1 -bad 200", "-rate ResNet50=1 -price h100=1", "-rate ResNet50=1 -slo 0s", "-rate ResNet50=1 -arrivals never", "-rate ResNet50=1 -family ResNet50=A"},
	"plan show":     {"-o xml", "-url nonsense"},
	"plan dry-run":  {"-o xml", "-parts -1", "-moves 2", "-moves NaN"},
	"plan apply":    {"-o xml", "-parts -1", "-moves -0.1"},
	"plan rollback": {"-o xml", "-url nonsense"},

	"canary show":     {"-o xml", "-url nonsense"},
	"canary start":    {"", "-model a -version 2 -o xml", "-model a -version 2 -share 2", "-model a -version 2 -shadow -1", "-model a -version 2 -tolerance NaN"},
	"canary promote":  {"", "-model a -o xml"},
	"canary rollback": {"", "-model a -o xml"},
	"canary end":      {"", "-model a -url nonsense"},

	"bench goodput":     {"-o xml", "-setting nonsense", "-policy nonsense", "-seeds 0", "-span 0s", "-ctrl -1s", "-repository out -setting all"},
	"bench schedule":    {"", "-arrivals a -profiles p -batches b -outcomes o", "-arrivals a -profiles p -batches a -outcomes o -gpus 1", "-arrivals a -profiles p -batches b -outcomes o -gpus 1 -policy nonsense", "-arrivals a -profiles p -batches b -outcomes o -gpus 1 -ctrl-us -1"},
	"bench plan":        {"-o xml", "-sizes nonsense", "-sizes 0x1", "-solver nonsense", "-seeds 0", "-limit 2h"},
	"bench accuracy":    {"-o xml", "-trace nonsense", "-devices cpu", "-devices h100=1", "-data nonsense", "-slo-rule nonsense", "-profiles . -latency worst", "-batch-max 0", "-gap 1", "-slo-scale 0", "-load-time 1h", "-policy nonsense"},
	"bench figure":      {"", "nonsense t1", "symphony nonsense", "symphony t1 -seeds 0", "rim nonsense", "adainf nonsense", "proteus nonsense", "proteus f5 -devices cpu"},
	"bench figures":     {"-only nonsense", "-seeds 0"},
	"bench scale":       {"-o xml", "-gpus 0", "-models 0", "-share 2", "-span 1s", "-policy nonsense"},
	"bench reconfigure": {"-o xml", "-load 0", "-gpus 1", "-scenario nonsense"},
	"bench prepare":     {"-o xml", "-gpus 0", "-hooks nonsense", "-loads nonsense", "-forms nonsense"},
	"bench sessions":    {"-o xml", "-workload nonsense", "-policy nonsense", "-workers -1", "-mixes -1", "-kills -1"},
	"bench spare":       {"-o xml", "-setting nonsense", "-load 0", "-load nonsense", "-step 1s", "-seeds 0"},
	"bench drift":       {"-o xml", "-policy nonsense", "-gpus 0", "-gpus 1,x", "-gpus 1,65", "-periods 1", "-tests 1", "-load 2", "-spare 0", "-schedule nonsense"},
	"bench joint":       {"-o xml", "-policy nonsense", "-load 0", "-load nonsense", "-span 0s", "-peak -1"},
	"bench dispatch":    {"-o xml", "-models 0", "-gpus 0", "-cores 0", "-kinds 100", "-each 0s", "-tries 0"},
	"bench transfer":    {"-o xml", "-provider nonsense", "-op nonsense", "-op stages,echo", "-peers 0", "-bytes 0", "-rounds 0", "-each 0", "-spin -1s", "-op echo -figure x.svg"},
	"bench overhead":    {"-provider nonsense", "-rounds 0", "-each 0", "-requests 0", "-bytes 0"},
	"bench gateway":     {"-callers 0", "-conns 0", "-each 0s", "-input 0", "-pictures -1", "-shared -traced"},
	"bench failover":    {"-o xml", "-kills 0", "-share 2", "-slo 0s", "-outlast 1ms", "-pause 0s"},
	"bench gpu":         {"-o xml", "-rounds 0", "-batches 0", "-graphs nonsense", "-precisions fp8", "-check -match ("},
}

// everyCommand returns every command that has flags of its own, by its full name without "downbeat".
func everyCommand() map[string]command {
	all := map[string]command{}
	for _, c := range commands() {
		all[c.name] = c
	}
	for group, words := range map[string][]command{"models": modelCommands(), "plan": planners(), "canary": canaryWords(), "bench": benches()} {
		delete(all, group)
		for _, c := range words {
			all[group+" "+c.name] = c
		}
	}
	return all
}

// runStopped runs a command line and returns its exit code. Its context has ended, so that a command that accepts the
// line does not work for long.
func runStopped(t *testing.T, line string) (int, error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	err := silently(t, func() error { return runLine(ctx, strings.Fields(line)) })
	return exitCode(ctx, err), err
}

// TestWrongCommandLinesExitWith2: every command refuses an unknown flag, an extra argument and each of its wrong values
// with exit code 2.
func TestWrongCommandLinesExitWith2(t *testing.T) {
	operands := map[string]string{"infer": "a b", "rollback": "a 1", "bench figure": "symphony t1"}
	for name := range everyCommand() {
		lines := []string{name + " -nonsense"}
		if name != "profile" { // its arguments are models
			lines = append(lines, name+" "+operands[name]+" extra")
		}

		if len(wrongValues[name]) == 0 && name != "version" {
			t.Errorf("%s: no wrong value is tested", name)
		}
		for _, flags := range wrongValues[name] {
			lines = append(lines, name+" "+flags)
		}
		for _, line := range lines {
			if got, err := runStopped(t, line); got != 2 {
				t.Errorf("%s: exit code %d, want 2: %v", line, got, err)
			}
		}
	}

	// Words that are no command.
	for _, line := range []string{"", "sevre", "help sevre", "bench", "bench nonsense", "plan nonsense", "canary nonsense", "models nonsense",
		"demo now", "demo drift now", "demo drift -duration 1s", "demo drift -models a,b", "demo drift -rate -1"} {
		if got, err := runStopped(t, line); got != 2 {
			t.Errorf("%q: exit code %d, want 2: %v", line, got, err)
		}
	}
}

// TestFailuresExitWith1: a file or a directory that cannot be used is no wrong command line.
func TestFailuresExitWith1(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"serve -config " + missing,
		"explain -token-file " + missing,
		"plan show -tls " + missing,
		"plan apply -f " + missing,
		"plan size -rate ResNet50=1 -profiles k=" + missing,
		"plan size -rate ResNet50=1 -models " + missing,
		"demo drift -models " + missing,
		"check -models " + missing,
		"models check -images -1 -dir " + missing,
		"bench accuracy -profiles " + missing,
		"bench sessions -workload " + missing + "/w.json",
		"bench schedule -gpus 1 -arrivals " + missing + " -profiles " + missing + " -batches b -outcomes o",
		"bench goodput -out " + file,
		"bench transfer -figure " + missing + "/x.svg",
		"bench dispatch -growth " + file,
	} {
		// The context has not ended: exit code 130 would hide what the command thinks of its own error.
		err := silently(t, func() error { return runLine(t.Context(), strings.Fields(line)) })
		if got := exitCode(t.Context(), err); got != 1 {
			t.Errorf("%s: exit code %d, want 1: %v", line, got, err)
		}
	}
}

// TestWrongValuesNameCommands: a row of the table above is a command.
func TestWrongValuesNameCommands(t *testing.T) {
	all := everyCommand()
	for name := range wrongValues {
		if _, known := all[name]; !known {
			t.Errorf("%s is no command", name)
		}
	}
}
