//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// hostLoad is the time that this host's processors have worked since it started.
type hostLoad struct {
	all  time.Duration // of all processors, working or not
	busy time.Duration // for anyone, other guests of the machine included
	own  time.Duration // for this process
}

// readHostLoad reads what the processors have done until now.
func readHostLoad() (h hostLoad, err error) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return h, err
	}
	defer f.Close()
	if h.all, h.busy, err = parseProcessorTimes(f); err != nil {
		return h, fmt.Errorf("/proc/stat: %w", err)
	}

	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return h, err
	}

	h.own = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	return h, nil
}

// parseProcessorTimes reads the sum over all processors in the kernel's text.
func parseProcessorTimes(r io.Reader) (all, busy time.Duration, err error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		return 0, 0, err
	}

	// The fields are user, nice, system, idle, iowait, irq, softirq and steal, in hundredths of a second; guests follow,
	// whose time is a part of user and nice.
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, errors.New("the first line is not that of all processors")
	}

	for i, text := range fields[1:9] {
		ticks, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		t := time.Duration(ticks) * 10 * time.Millisecond
		all += t
		if i != 3 && i != 4 {
			busy += t
		}
	}
	return all, busy, nil
}

// othersSince returns the share of all processors' time since an earlier moment that this process did not use and that
// was not idle, 0 to 1.
func (h hostLoad) othersSince(before hostLoad) float64 {
	all := h.all - before.all
	if all <= 0 {
		return 0
	}
	others := (h.busy - before.busy) - (h.own - before.own)
	return min(1, max(0, others.Seconds()/all.Seconds()))
}
