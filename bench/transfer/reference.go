package transfer

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed reference/reference.c
var referenceSource string

// errNoReference means that this host has no reference.
var errNoReference = errors.New("no reference")

// buildReference compiles the C program into dir.
func buildReference(ctx context.Context, dir string) (string, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return "", fmt.Errorf("%w: no C compiler (cc) to build it", errNoReference)
	}

	src, bin := filepath.Join(dir, "reference.c"), filepath.Join(dir, "reference")
	if err := os.WriteFile(src, []byte(referenceSource), 0o600); err != nil {
		return "", err
	}

	// A failing compiler means a host without a reference, not an error: ours is measured nevertheless.
	if out, err := exec.CommandContext(ctx, cc, "-O2", "-pthread", "-o", bin, src).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %v: %s", errNoReference, err, out)
	}
	return bin, nil
}

// reference measures the same op by other means: rounds of n latencies in ns.
type reference interface {
	title(op string) string
	measureRounds(op string, n int, to []int64) ([]int64, error)
	closeReference()
}

// cReference is a running C client that measures on demand, and its server if it has one.
type cReference struct {
	name string
	in   io.WriteCloser
	out  *bufio.Scanner
	stop []func()
}

// startReference starts a provider's reference; nil if there is none.
func startReference(ctx context.Context, c Config, bin, provider string) (reference, error) {
	if provider == "verbs" {
		return startPerftest(ctx, c)
	}
	if bin == "" {
		return nil, errNoReference
	}

	// Over TCP the reference has servers of its own; shared memory needs one process.
	r := &cReference{}
	var args []string
	switch provider {
	case "tcp":
		r.name = "c-epoll"
		ports, err := r.serveC(ctx, c, bin)
		if err != nil {
			r.closeReference()
			return nil, err
		}
		args = append([]string{"tcp", fmt.Sprint(c.Bytes), c.Listen}, ports...)
	case "shm", "local":
		r.name = "memcpy+futex"
		args = []string{"shm", fmt.Sprint(c.Peers), fmt.Sprint(c.Bytes)}
	default:
		return nil, fmt.Errorf("%w for %s", errNoReference, provider)
	}

	in, out, err := r.startC(exec.CommandContext(ctx, bin, args...))
	if err != nil {
		r.closeReference()
		return nil, err
	}
	r.in, r.out = in, bufio.NewScanner(out)
	return r, nil
}

func (r *cReference) serveC(ctx context.Context, c Config, bin string) ([]string, error) {
	_, out, err := r.startC(inNetNS(ctx, c.NetNS, bin, "serve", fmt.Sprint(c.Peers), fmt.Sprint(c.Bytes), c.Listen))
	if err != nil {
		return nil, err
	}

	// The kernel chooses the server's ports; its first line names them.
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("reference server: %w", err)
	}
	return strings.Fields(line), nil
}

func (r *cReference) startC(cmd *exec.Cmd) (io.WriteCloser, io.Reader, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}

	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	r.stop = append(r.stop, func() { in.Close(); cmd.Wait() })
	return in, out, nil
}

func (r *cReference) title(string) string { return r.name }

// measureRounds appends n latencies of op in ns.
func (r *cReference) measureRounds(op string, n int, to []int64) ([]int64, error) {
	if _, err := fmt.Fprintf(r.in, "%s %d\n", op, n); err != nil {
		return to, err
	}

	for range n {
		if !r.out.Scan() {
			return to, fmt.Errorf("the reference ended early")
		}
		v, err := strconv.ParseInt(r.out.Text(), 10, 64)
		if err != nil {
			return to, err
		}
		to = append(to, v)
	}
	return to, nil
}

func (r *cReference) closeReference() {
	// End the client before its server, so that neither reports a lost connection.
	for i := len(r.stop) - 1; i >= 0; i-- {
		r.stop[i]()
	}
}
