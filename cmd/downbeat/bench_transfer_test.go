//go:build linux

package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestBenchesRefuseBeforeTheyWork: a wrong flag is named with its value and what is allowed before
// anything is measured.
func TestBenchesRefuseBeforeTheyWork(t *testing.T) {
	for _, c := range []struct {
		run  command
		args string
		want []string
	}{
		{benchTransfer(), "-op raed", []string{`-op "raed"`, "echo, read, incast"}},
		{benchTransfer(), "-provider tcp,smh", []string{`-provider "smh"`, "tcp, shm, local, verbs"}},
		{benchTransfer(), "-peers 0", []string{"-peers 0", "1 to 64"}},
		{benchTransfer(), "-bytes 67108865", []string{"-bytes 67108865", "1 to 67108864"}},
		{benchTransfer(), "-rounds 0", []string{"-rounds 0", "1 to"}},
		{benchTransfer(), "-each 1000001", []string{"-each 1000001", "1 to"}},
		{benchTransfer(), "-spin -1s", []string{"-spin -1s", "0 or more"}},
		{benchTransfer(), "-o xml", []string{`-o "xml"`, "table, json, csv"}},
		{benchTransfer(), "-op read -figure f.svg", []string{"-figure f.svg", "incast"}},
		{benchTransfer(), "-figure /dev/null/f.svg", []string{"-figure", "/dev/null/f.svg"}},
		{benchDispatch(), "-growth /dev/null/x", []string{"-growth /dev/null/x"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := c.run.run(ctx, strings.Fields(c.args))
		for _, want := range c.want {
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), want) {
				t.Errorf("bench %s %s: error %v, want one at once that says %q", c.run.name, c.args, err, want)
			}
		}
		cancel()
	}
}
