package gpu

import (
	"bufio"
	"bytes"
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

//go:embed torch.py
var torchScript string

// Torch measures graphs with PyTorch and CUDA graphs in one Python process, which starts at the first call and ends
// with stop. If python has no torch, or torch no GPU, ok is false from then on.
func Torch(python string) (measure TorchFunc, stop func()) {
	t := &torch{python: python}
	return t.measureTorch, t.stopTorch
}

const (
	noTorch    = 3 // the script's exit status without torch or without a GPU
	torchLimit = 2 * time.Minute
)

type torch struct {
	python    string
	cmd       *exec.Cmd
	in        io.WriteCloser
	out       *bufio.Scanner
	complaint bytes.Buffer
	absent    bool
}

func (t *torch) measureTorch(ctx context.Context, graph, precision string, batch int) (float64, bool, error) {
	if t.cmd == nil && !t.absent {
		if err := t.startTorch(); err != nil {
			return 0, false, err
		}
	}
	if t.absent {
		return 0, false, nil
	}

	// The process may hang: kill it after its time limit, and when the caller gives up.
	kill := time.AfterFunc(torchLimit, func() { _ = t.cmd.Process.Kill() })
	defer kill.Stop()
	stop := context.AfterFunc(ctx, func() { _ = t.cmd.Process.Kill() })
	defer stop()

	fmt.Fprintln(t.in, graph, precision, batch)
	if !t.out.Scan() {
		return 0, false, t.endReason()
	}

	line := strings.TrimSpace(t.out.Text())
	us, err := strconv.ParseFloat(line, 64)
	if err != nil {
		return 0, false, fmt.Errorf("%s: %q", t.python, line)
	}
	return us, true, nil
}

// startTorch starts the Python process that times PyTorch; without Python there is none.
func (t *torch) startTorch() (err error) {
	t.cmd = exec.Command(t.python, "-c", torchScript)
	t.cmd.Stderr = &t.complaint
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	t.out = bufio.NewScanner(out)
	if err = t.cmd.Start(); err != nil {
		t.cmd = nil
		if t.absent = errors.Is(err, exec.ErrNotFound); t.absent {
			return nil
		}
	}
	return err
}

// endReason returns why the process gave no answer; nil if torch is unavailable.
func (t *torch) endReason() error {
	err := t.cmd.Wait()
	status := t.cmd.ProcessState.ExitCode()
	t.cmd = nil
	if t.absent = status == noTorch; t.absent {
		return nil
	}
	return fmt.Errorf("%s: %w: %s", t.python, err, tailOf(t.complaint.String()))
}

func (t *torch) stopTorch() {
	// Closing its stdin ends the script.
	if t.cmd != nil {
		_ = t.in.Close()
		_ = t.cmd.Wait()
		t.cmd = nil
	}
}

func tailOf(s string) string { return s[max(0, len(s)-500):] }
