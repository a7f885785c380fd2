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

// errNoReference: there is no C compiler to build the reference with.
var errNoReference = errors.New("no C compiler (cc) found: no reference")

// buildReference compiles the C program into dir.
func buildReference(ctx context.Context, dir string) (string, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return "", errNoReference
	}
	src, bin := filepath.Join(dir, "reference.c"), filepath.Join(dir, "reference")
	if err := os.WriteFile(src, []byte(referenceSource), 0o600); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, cc, "-O2", "-pthread", "-o", bin, src).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %v: %s", errNoReference, err, out)
	}
	return bin, nil
}

// reference is a running C client that measures on demand, and its server if it has one.
type reference struct {
	name string
	in   io.WriteCloser
	out  *bufio.Scanner
	stop []func()
}

// startReference runs the reference that belongs to a provider; nil where there is none.
func startReference(ctx context.Context, c Config, bin, provider string) (*reference, error) {
	r := &reference{}
	var args []string
	switch provider {
	case "tcp":
		r.name = "c-epoll"
		ports, err := r.serve(ctx, c, bin)
		if err != nil {
			r.close()
			return nil, err
		}
		args = append([]string{"tcp", fmt.Sprint(c.Bytes), c.Listen}, ports...)
	case "shm", "local":
		r.name = "memcpy+futex"
		args = []string{"shm", fmt.Sprint(c.Peers), fmt.Sprint(c.Bytes)}
	default:
		return nil, nil
	}
	in, out, err := r.start(exec.CommandContext(ctx, bin, args...))
	if err != nil {
		r.close()
		return nil, err
	}
	r.in, r.out = in, bufio.NewScanner(out)
	return r, nil
}

func (r *reference) serve(ctx context.Context, c Config, bin string) ([]string, error) {
	_, out, err := r.start(inNetNS(ctx, c.NetNS, bin, "serve", fmt.Sprint(c.Peers), fmt.Sprint(c.Bytes), c.Listen))
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("reference server: %w", err)
	}
	return strings.Fields(line), nil
}

func (r *reference) start(cmd *exec.Cmd) (io.WriteCloser, io.Reader, error) {
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

// measure appends n latencies of op in ns.
func (r *reference) measure(op string, n int, to []int64) ([]int64, error) {
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

func (r *reference) close() {
	for i := len(r.stop) - 1; i >= 0; i-- {
		r.stop[i]()
	}
}
