package emu

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/cuda"
)

// Fault is a fault of the device. The zero value is a healthy device.
type Fault struct {
	Slow float64 // kernels take this many times ℓ(b); 0 and 1: as the profile says
	// Op is the device's operation that always fails, such as "submit", "launch", "copy in" or "alloc" (cuda.Site),
	// and Device is how it fails.
	Op     string
	Device cuda.Fault
}

// Faults to inject.
var (
	Failing = Fault{Op: "submit", Device: cuda.Fault{Code: cuda.CodeLaunchResources}}   // batches fail, the device goes on
	Lost    = Fault{Op: "submit", Device: cuda.Fault{Code: cuda.CodeDeviceUnavailable}} // it falls off the bus
)

// kinds are the faults that ParseFaults knows.
var kinds = map[string]Fault{
	"fail":   Failing,
	"lost":   Lost,
	"sticky": {Op: "launch", Device: cuda.Fault{Code: cuda.CodeIllegalAddress}},
	"hang":   {Op: "launch", Device: cuda.Fault{Hang: true}},
	"slow":   {Op: "copy in", Device: cuda.Fault{Slow: 100 * time.Millisecond}},
	"alloc":  {Op: "alloc", Device: cuda.Fault{Code: cuda.CodeOutOfMemory}},
}

const faultUsage = "want GPU:KIND@BATCH, such as 0:lost@1000; kinds: alloc, fail, hang, lost, slow, sticky"

// ParseFaults parses a list such as "0:lost@1000,1:hang@50": which of n GPUs, which fault, and after how many
// batches; "@" and the number are optional. alloc fails the allocations of Load, so it applies from the start.
func ParseFaults(text string, n int) ([]Planned, error) {
	plans := make([]Planned, n)
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		number, rest, ok := strings.Cut(word, ":")
		name, after, when := strings.Cut(rest, "@")
		gpu, err := strconv.Atoi(number)
		fault, known := kinds[name]
		if !ok || err != nil || !known {
			return nil, fmt.Errorf("fault: %q: %s", word, faultUsage)
		}
		if gpu < 0 || gpu >= n {
			return nil, fmt.Errorf("fault: %q: GPU %d: there are %d emulated ones", word, gpu, n)
		}

		p := Planned{Fault: fault}
		if when {
			if p.After, err = strconv.ParseUint(after, 10, 64); err != nil || name == "alloc" {
				return nil, fmt.Errorf("fault: %q: after %q: %s", word, after, faultUsage)
			}
		}

		// A second fault would silently replace the first.
		if plans[gpu].Fault != (Fault{}) {
			return nil, fmt.Errorf("fault: %q: GPU %d has a fault already", word, gpu)
		}
		plans[gpu] = p
	}
	return plans, nil
}

// Inject sets the fault of the device from now on, which all its lanes have.
func (e *Executor) Inject(f Fault) { e.machine.fault.Store(&f) }

// goWrong returns the device's fault at a site.
func (e *Executor) goWrong(s cuda.Site) cuda.Fault {
	if f := e.machine.fault.Load(); f.Op == s.Op {
		return f.Device
	}
	return cuda.Fault{}
}
