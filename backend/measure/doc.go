// Package measure times a loaded model at its batch sizes and turns the samples into ℓ(b): a
// monotone table of a high percentile, and the line αb + β through it (Symphony §3.1).
//
// Samples of more than three times a size's median are the host's stalls and do not count; what still
// falls with the batch size is pooled. It loads no model and stores nothing. Sizes are interleaved round by round in a seeded random
// order, so that a slow moment of the host hits all sizes alike instead of bending the line.
//
// One goroutine per Run, which should be locked to its thread.
package measure

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// Percentile of the samples of a batch size that ℓ(b) is: a deadline is met by what nearly every
// batch takes, not by what the median does; beyond it lie the host's own stalls.
const Percentile = 0.95

// Size is what was measured at one batch size.
type Size struct {
	Batch    int
	Samples  int
	P50, P99 time.Duration
	High     time.Duration // at Percentile
	Residual time.Duration // High minus the line
}

// Result is a measured profile.
type Result struct {
	Sizes   []Size // ascending; not every size if time was short
	Table   []time.Duration
	Line    profile.Line
	Fitted  bool // false: a line makes no sense, with one batch size or falling latencies
	Elapsed time.Duration
}

// Profile returns the table as ℓ(b).
func (r *Result) Profile() (*profile.Profile, error) { return profile.New(r.Table) }

// Stored returns the result as the repository keeps it.
func (r *Result) Stored(host, description string, now time.Time) repo.Profile {
	p := repo.Profile{Host: host, Description: description, AlphaNS: float64(r.Line.Alpha), BetaNS: float64(r.Line.Beta), R2: r.Line.R2,
		Measured: now.UTC().Format(time.RFC3339)}

	p.TableNS = slices.Clone(r.Table)
	for _, s := range r.Sizes {
		p.Repeats = max(p.Repeats, s.Samples)
	}
	return p
}

// HostKind names what a profile of this host is good for: the processor, the library that runs on it, and the threads of
// an executor if they are several, for example "cpu/Xeon-8375C/ort-1.27.0" or "cpu/Xeon-8375C/ort-1.27.0/threads-4".
func HostKind(ortVersion string, threads int) string {
	kind := "cpu/" + findProcessor() + "/ort-" + ortVersion
	if threads > 1 {
		kind += fmt.Sprintf("/threads-%d", threads)
	}
	return kind
}

// Describe says more about the host, for people.
func Describe(ortVersion string, threads int) string {
	each := "one thread per executor"
	if threads > 1 {
		each = fmt.Sprintf("%d threads per executor", threads)
	}
	return fmt.Sprintf("%s, %d cores, %s, ONNX Runtime %s, %s/%s", findProcessor(), runtime.NumCPU(), each, ortVersion, runtime.GOOS, runtime.GOARCH)
}

// findProcessor returns the processor's name in one word, as precise as the kernel tells it.
func findProcessor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()

	fields := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			break // the first processor's end
		}
		fields[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return processorName(fields)
}

// processorName adds family, model and stepping to a name without a number: virtual machines often
// say no more than "Intel Xeon Processor".
func processorName(fields map[string]string) string {
	name := shortName(fields["model name"])
	if strings.ContainsAny(name, "0123456789") || fields["model"] == "" {
		return name
	}
	return name + "-" + fields["cpu family"] + "." + fields["model"] + "." + fields["stepping"]
}

// shortName turns "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz" into "Xeon-Platinum-8375C".
func shortName(s string) string {
	// Behind the @ stands a clock rate, which does not tell processors apart.
	s, _, _ = strings.Cut(s, "@")
	words := strings.FieldsFunc(strings.NewReplacer("(R)", " ", "(TM)", " ").Replace(s), func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r == '.' || r == '-')
	})

	// Words that every such name has tell nothing.
	words = slices.DeleteFunc(words, func(w string) bool { return w == "Intel" || w == "CPU" || w == "Processor" })
	return cmp.Or(strings.Join(words, "-"), runtime.GOARCH)
}
