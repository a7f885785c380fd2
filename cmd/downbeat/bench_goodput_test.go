package main

import (
	"context"
	"strings"
	"testing"
)

func TestBenchGoodputRefusesWhatItCannotDo(t *testing.T) {
	for _, c := range []struct {
		run  command
		args string
		want []string
	}{
		{benchGoodput(), "-setting fig5", []string{"fig5", "table4-resnet50"}},
		{benchGoodput(), "-policy fifo", []string{"fifo", "downbeat"}},
		{benchGoodput(), "-seeds 0", []string{"-seeds 0", "want 1"}},
		{benchGoodput(), "-seed-base 9223372036854775807", []string{"-seed-base 9223372036854775807", "want at most"}},
		{benchGoodput(), "-span 1ms", []string{"-span 1ms", "want 1s"}},
		{benchGoodput(), "-ctrl -1us", []string{"-ctrl -1µs", "want 0"}},
		{benchGoodput(), "-o xml", []string{"xml", "json"}},
		{benchGoodput(), "table4", []string{"table4", "flags only"}},
		{benchGoodput(), "-out /dev/null/x", []string{"-out /dev/null/x"}},
		{benchSchedule(), "-arrivals a -profiles p -batches b -outcomes o -gpus 1 -policy all", []string{"-policy all", "want one"}},
		{benchSchedule(), "-gpus 1", []string{"-arrivals is missing"}},
		{benchSchedule(), "-arrivals a -profiles p -batches b -outcomes o", []string{"gpus = 0", "want 1"}},
		{benchSchedule(), "-arrivals a -profiles p -batches b -outcomes o -gpus 1 -ctrl-us -1", []string{"-ctrl-us -1", "want 0"}},
		{benchSchedule(), "-arrivals a -profiles p -batches b -outcomes o -gpus 1 -policy no", []string{`"no"`, "downbeat"}},
	} {
		err := c.run.run(context.Background(), strings.Fields(c.args))
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("bench %s %s: error %v, want one that says %q", c.run.name, c.args, err, want)
			}
		}
	}
}
