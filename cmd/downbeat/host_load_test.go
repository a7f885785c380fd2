//go:build linux

package main

import (
	"strings"
	"testing"
	"time"
)

// TestHostLoad: the time of other programs is what is neither idle nor this process's own.
func TestHostLoad(t *testing.T) {
	text := "cpu  100 10 50 700 40 5 5 90 30 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
	all, busy, err := parseProcessorTimes(strings.NewReader(text))
	if err != nil || all != 10*time.Second || busy != 2600*time.Millisecond {
		t.Errorf("%v of %v are busy, %v: want 2.6s of 10s", busy, all, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3\n", "cpu0 1 1 1 1 1 1 1 1\n", "cpu 1 1 1 1 x 1 1 1\n"} {
		if _, _, err := parseProcessorTimes(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}

	before := hostLoad{all: 100 * time.Second, busy: 50 * time.Second, own: 10 * time.Second}
	now := hostLoad{all: 120 * time.Second, busy: 62 * time.Second, own: 17 * time.Second}
	if got := now.othersSince(before); got != 0.25 {
		t.Errorf("others took %v, want 0.25", got)
	}
	if got := before.othersSince(before); got != 0 {
		t.Errorf("in no time others took %v", got)
	}

	// The kernel's own text, and a process that has worked.
	h, err := readHostLoad()
	if err != nil || h.all <= 0 || h.busy <= 0 || h.busy > h.all || h.own <= 0 {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestWhyRequestsWereLost: a ramp that lost requests on a host with other work says so, and no other does.
func TestWhyRequestsWereLost(t *testing.T) {
	for _, c := range []struct {
		bad, others float64
		want        string
	}{
		{0.2, 0.9, ""},
		{5, 0.02, ""},
		{5, 0.45, "Other programs took 45 % of this host's processors meanwhile"},
	} {
		if got := explainLoss(c.bad, c.others); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v %% bad, others %v: %q, want %q", c.bad, c.others, got, c.want)
		}
	}
}
