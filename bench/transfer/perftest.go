package transfer

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// perftest measures with ib_read_lat and ib_read_bw on the same device, found by the address (librdmacm). Each call
// runs one round, with a server and a client.
type perftest struct {
	ctx    context.Context
	config Config
}

func startPerftest(ctx context.Context, c Config) (reference, error) {
	for _, tool := range []string{"ib_read_lat", "ib_read_bw"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: perftest's %s is not installed", errNoReference, tool)
		}
	}
	return &perftest{ctx, c}, nil
}

func (p *perftest) title(op string) string {
	switch op {
	case "incast":
		return "ib_read_bw"
	case entryRead:
		return fmt.Sprintf("ib_read_lat -s %d", p.config.Bytes+entryBytes)
	}
	return "ib_read_lat"
}

// entryRead is a read of the size of ours, which includes the buffer's entry (decision 0023). For a payload that
// fills its packets exactly, the entry costs one more packet.
const (
	entryRead  = "read with entry"
	entryBytes = 16
)

func (p *perftest) closeReference() {}

// measureRounds appends n latencies. For the incast, each is the time of the bytes at the bandwidth of ib_read_bw.
func (p *perftest) measureRounds(op string, n int, to []int64) ([]int64, error) {
	if op == "incast" {
		each, err := p.measureBandwidth(n)
		for range n {
			to = append(to, int64(each)*int64(p.config.Peers))
		}
		return to, err
	}
	// Use cycles: perftest's own clock calibration fails on noisy hosts, and it then prints inf.
	mhz, err := cpuMHz()
	if err != nil {
		return to, err
	}

	size := p.config.Bytes
	if op == entryRead {
		size += entryBytes
	}
	out, _, err := p.runPair("ib_read_lat", size, max(n, 20), "-U", "-C")
	if err != nil {
		return to, err
	}

	before := len(to)
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		if _, cycles, ok := strings.Cut(lines.Text(), ", "); ok {
			if v, err := strconv.ParseFloat(strings.TrimSpace(cycles), 64); err == nil {
				to = append(to, int64(v/mhz*1e3))
			}
		}
	}

	if len(to) == before {
		return to, fmt.Errorf("ib_read_lat printed no latencies: %s", out)
	}
	return to, nil
}

// measureBandwidth returns the time of one read among many, by the clock: a long run minus a short one.
func (p *perftest) measureBandwidth(n int) (time.Duration, error) {
	// The difference of two runs excludes the time of connecting.
	short, more := 50, max(100, n*p.config.Peers)
	_, less, err := p.runPair("ib_read_bw", p.config.Bytes, short)
	if err != nil {
		return 0, err
	}

	_, whole, err := p.runPair("ib_read_bw", p.config.Bytes, short+more)
	if err != nil {
		return 0, err
	}
	return max(0, whole-less) / time.Duration(more), nil
}

// runPair runs server and client and returns the client's output and time. perftest occasionally hangs when its
// processors stall; then both run again.
func (p *perftest) runPair(tool string, size, n int, args ...string) (out []byte, took time.Duration, err error) {
	args = append([]string{"-R", "-F", "-s", strconv.Itoa(size), "-n", strconv.Itoa(n)}, args...)
	for range 3 {
		if out, took, err = p.runOnce(tool, args); err == nil || p.ctx.Err() != nil {
			break
		}
	}
	return out, took, err
}

func (p *perftest) runOnce(tool string, args []string) (out []byte, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, 30*time.Second)
	defer cancel()

	server := exec.CommandContext(ctx, tool, args...)
	if err := server.Start(); err != nil {
		return nil, 0, err
	}
	defer server.Wait()

	for range 20 { // until the server listens
		if ctx.Err() != nil {
			break
		}
		time.Sleep(200 * time.Millisecond)
		began := time.Now()
		if out, err = exec.CommandContext(ctx, tool, append(args, p.config.Listen)...).CombinedOutput(); err == nil {
			return out, time.Since(began), nil
		}
	}

	cancel()
	return nil, 0, fmt.Errorf("%s: %w: %s", tool, err, out)
}

// cpuMHz returns the rate of the cycle counter, as the kernel calibrated it.
func cpuMHz() (float64, error) {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "cpu MHz" {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("%w: /proc/cpuinfo has no cpu MHz", errNoReference)
}
