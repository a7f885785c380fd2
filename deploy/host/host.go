// Package host checks what a machine offers to Downbeat and suggests changes. It changes nothing itself.
package host

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// Verdict grades a finding.
type Verdict uint8

// The verdicts, from best to worst. Slower means that serving works, but not at full speed.
const (
	Good Verdict = iota
	Absent
	Slower
)

// String returns the verdict as printed in the table.
func (v Verdict) String() string { return [...]string{"ok", "none", "slower"}[v] }

// Finding is one line of the check.
type Finding struct {
	What    string
	Verdict Verdict
	Found   string
	Change  string // what to change; empty: nothing
}

// Kernel returns the findings from the kernel's own files. root is "/" except in tests.
func Kernel(root string) []Finding {
	return []Finding{findCores(), findMemlock(), hugePages(root), findGovernor(root), timerSlack()}
}

func findCores() Finding {
	f := Finding{What: "cores", Found: fmt.Sprintf("%d usable, Go runs on %d", runtime.NumCPU(), runtime.GOMAXPROCS(0))}
	if runtime.NumCPU() < 4 {
		f.Verdict, f.Change = Slower, "give the scheduler and each executor a core of its own (4 or more in all)"
	}
	return f
}

func findMemlock() Finding {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		return Finding{What: "memlock", Verdict: Absent, Found: err.Error()}
	}

	if lim.Cur == unix.RLIM_INFINITY {
		return Finding{What: "memlock", Found: "unlimited"}
	}

	f := Finding{What: "memlock", Found: fmt.Sprintf("%d MiB", lim.Cur>>20)}
	if lim.Cur < 1<<30 {
		f.Verdict, f.Change = Slower, "raise it for registered and pinned memory: ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit"
	}
	return f
}

func hugePages(root string) Finding {
	text, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return Finding{What: "huge pages", Verdict: Absent, Found: err.Error()}
	}

	free := readMeminfo(string(text), "HugePages_Free")
	f := Finding{What: "huge pages", Found: fmt.Sprintf("%d free of %d kB each", free, readMeminfo(string(text), "Hugepagesize"))}

	if free == 0 {
		f.Verdict, f.Change = Slower, "reserve some: sysctl vm.nr_hugepages=512"
	}
	return f
}

func readMeminfo(text, key string) int {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == key {
			// Append 0 for a line without a number.
			n, _ := strconv.Atoi(strings.Fields(value + " 0")[0])
			return n
		}
	}
	return 0
}

func findGovernor(root string) Finding {
	text, err := os.ReadFile(filepath.Join(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
	if err != nil {
		return Finding{What: "CPU governor", Found: "not visible (a virtual machine, usually)"}
	}

	g := strings.TrimSpace(string(text))
	if g == "performance" {
		return Finding{What: "CPU governor", Found: g}
	}
	return Finding{What: "CPU governor", Verdict: Slower, Found: g, Change: "cpupower frequency-set -g performance"}
}

func timerSlack() Finding {
	ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return Finding{What: "timer slack", Verdict: Absent, Found: err.Error()}
	}
	return Finding{What: "timer slack", Found: fmt.Sprintf("%d µs by default; the scheduler's threads set 1 ns", ns/1000)}
}

// Table prints the findings, aligned, each with its suggested change.
func Table(w io.Writer, findings []Finding) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.What, f.Verdict, f.Found)
		if f.Change != "" {
			fmt.Fprintf(tw, "\t\t→ %s\n", f.Change)
		}
	}
	tw.Flush()
}
