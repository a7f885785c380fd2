package transfer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// perftest measures with ib_read_lat and ib_read_bw on the same device, found by the address
// (librdmacm). They run one round per call, a server and a client each.
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
	if op == "incast" {
		return "ib_read_bw"
	}
	return "ib_read_lat"
}

func (p *perftest) close() {}

// measure appends n latencies. For the incast these are all the time that the bytes take at the
// bandwidth of ib_read_bw.
func (p *perftest) measure(op string, n int, to []int64) ([]int64, error) {
	iterations := max(n, 20)
	if op == "incast" {
		iterations = max(100, p.config.Peers*n)
	}
	out, err := p.run(p.title(op), iterations, 10)
	if err != nil {
		return to, err
	}
	if op == "incast" {
		mb, err := averageBandwidth(out)
		if err != nil {
			return to, err
		}
		took := float64(p.config.Peers*p.config.Bytes) / (mb * (1 << 20)) * float64(time.Second)
		for range n {
			to = append(to, int64(took))
		}
		return to, nil
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		if _, usec, ok := strings.Cut(lines.Text(), ", "); ok {
			if v, err := strconv.ParseFloat(strings.TrimSpace(usec), 64); err == nil {
				to = append(to, int64(v*1e3))
			}
		}
	}
	if len(to) == 0 {
		return to, fmt.Errorf("ib_read_lat printed no latencies: %s", out)
	}
	return to, nil
}

func (p *perftest) run(tool string, n, tries int) ([]byte, error) {
	args := []string{"-R", "-F", "-s", strconv.Itoa(p.config.Bytes), "-n", strconv.Itoa(n)}
	if tool == "ib_read_lat" {
		args = append(args, "-U")
	}
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	server := exec.CommandContext(ctx, tool, args...)
	if err := server.Start(); err != nil {
		return nil, err
	}
	defer server.Wait()
	var out []byte
	var err error
	for range 20 { // until the server listens
		time.Sleep(200 * time.Millisecond)
		if out, err = exec.CommandContext(ctx, tool, append(args, p.config.Listen)...).CombinedOutput(); err == nil {
			break
		}
	}
	// perftest calibrates a cycle counter; on a noisy host it fails to and prints zeros or infinities.
	if err == nil && bytes.Contains(out, []byte("Correlation coefficient")) {
		if tries > 0 {
			server.Wait()
			return p.run(tool, n, tries-1)
		}
		err = errors.New("its clock cannot be calibrated here")
	}
	if err == nil {
		return out, nil
	}
	cancel()
	return nil, fmt.Errorf("%s: %w: %s", tool, err, out)
}

// averageBandwidth reads "BW average[MB/sec]" from ib_read_bw's table.
func averageBandwidth(out []byte) (float64, error) {
	after := false
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "BW average") {
			after = true
			continue
		}
		if f := strings.Fields(line); after && len(f) >= 4 {
			mb, err := strconv.ParseFloat(f[3], 64)
			if err != nil || mb <= 0 {
				return 0, fmt.Errorf("ib_read_bw printed bandwidth %q: %s", f[3], out)
			}
			return mb, nil
		}
	}
	return 0, fmt.Errorf("ib_read_bw printed no bandwidth: %s", out)
}
