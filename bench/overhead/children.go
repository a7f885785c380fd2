package overhead

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"

	"downbeat.dev/bench/stage"
	"downbeat.dev/core/engine"
)

// hello is the message of a child that is ready.
type hello struct{ Addr string }

// children are the processes of a run.
type children struct{ all []*exec.Cmd }

// startChild starts a child and returns the address that it prints.
func (k *children) startChild(ctx context.Context, child []string, args ...string) (string, error) {
	if len(child) == 0 {
		return "", errors.New("no command to run children with")
	}

	cmd := exec.CommandContext(ctx, child[0], append(slices.Clone(child[1:]), args...)...)
	in, err := cmd.StdinPipe() // a child lives until its stdin ends
	if err != nil {
		return "", err
	}

	// Closing its stdin asks a child to leave; WaitDelay ends a child that does not.
	cmd.Cancel = in.Close
	cmd.WaitDelay = patience
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}

	if err := cmd.Start(); err != nil {
		return "", err
	}
	k.all = append(k.all, cmd)

	// The child prints its address in its first line.
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return "", fmt.Errorf("child %v: %w", args, err)
	}

	var h hello
	if err := json.Unmarshal(line, &h); err != nil {
		return "", fmt.Errorf("child %v says %q: %w", args, line, err)
	}
	return h.Addr, nil
}

// waitAll waits for all children, which have been told to end.
func (k *children) waitAll() {
	for _, cmd := range k.all {
		_ = cmd.Wait()
	}
}

// Serve runs a child: the scheduler, the backend, or a hop of the floor. It ends with its stdin.
func Serve(in io.Reader, out io.Writer, what, next, provider string, bytes int) error {
	s := &stage.Stage{}
	defer func() { _ = s.Close() }()

	// A scheduler and a hop have an address; a backend connects to the scheduler's.
	var addr string
	switch what {
	case "scheduler":
		if err := s.OpenScheduler(engine.Options{}); err != nil {
			return err
		}
		a, err := s.Listen("127.0.0.1:0")
		if err != nil {
			return err
		}
		addr = a.String()

	case "backend":
		if err := s.OpenBackend(modelFiles(bytes), 1, dataConfig(provider), next); err != nil {
			return err
		}

	case "hop":
		a, err := runHop(next, bytes)
		if err != nil {
			return err
		}
		addr = a

	default:
		return fmt.Errorf("-serve %q: must be scheduler, backend or hop", what)
	}

	// Print the address when everything listens, so that the parent may connect at once.
	line, err := json.Marshal(hello{addr})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
		return err
	}

	// Serve until the parent closes stdin.
	_, err = io.Copy(io.Discard, in)
	return err
}
