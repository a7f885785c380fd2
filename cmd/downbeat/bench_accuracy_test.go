package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAccuracyRefuses: a wrong flag or input is named with its value and what is allowed.
func TestAccuracyRefuses(t *testing.T) {
	nothing, blank := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(blank, "vehicle.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		run  command
		args string
		want []string
	}{
		{benchAccuracy(), "-trace square", []string{"-trace square", "diurnal, bursty, figure4"}},
		{benchAccuracy(), "-trace " + nothing, []string{"-trace " + nothing, "no file FAMILY.txt"}},
		{benchAccuracy(), "-trace " + blank, []string{"-trace " + blank, "vehicle.txt: line 1: no request"}},
		{benchAccuracy(), "-profiles /nowhere", []string{"-profiles /nowhere", "aggregate_profiled.csv"}},
		{benchAccuracy(), "-devices cpu=0", []string{"-devices", "cpu=0"}},
		{benchAccuracy(), "-devices tpu=3", []string{"tpu", "1080ti"}},
		{benchAccuracy(), "-slo-scale 0", []string{"-slo-scale 0", "0.1 to 100"}},
		{benchAccuracy(), "-slo-rule p99", []string{`-slo-rule "p99"`, "artifact, cpu or trace"}},
		{benchAccuracy(), "-load-time 2m", []string{"-load-time 2m0s", "1m"}},
		{benchAccuracy(), "-policy best", []string{"-policy", `"best"`, "sommelier"}},
		{benchAccuracy(), "-data fixed", []string{`-data "fixed"`, "repaired"}},
		{benchAccuracy(), "-gap NaN", []string{"-gap NaN", "0 to 0.5"}},
		{benchAccuracy(), "-batch-max 0", []string{"-batch-max 0", "1 to 1024"}},
		{benchAccuracy(), "-o xml", []string{`-o "xml"`, "json"}},
		{benchFigure(), "proteus f2", []string{`"f2"`, "f10"}},
		{benchFigure(), "proteus f1 -out /dev/null/x", []string{"-out /dev/null/x"}},
		{benchFigure(), "adainf f14", []string{`"f14"`, "f13"}},
		{benchFigure(), "ekya f9", []string{`"ekya"`, "proteus"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		err := c.run.run(ctx, strings.Fields(c.args))
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("bench %s %s: error %v, want one that says %q", c.run.name, c.args, err, want)
			}
		}
		cancel()
	}
}
