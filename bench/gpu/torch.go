package gpu

import (
	"bytes"
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

//go:embed torch.py
var torchScript string

// Torch measures a graph with PyTorch and CUDA graphs by running python. Where python has no torch, or
// torch no GPU, ok is false.
func Torch(python string) func(ctx context.Context, graph string, batch int) (us float64, ok bool, err error) {
	return func(ctx context.Context, graph string, batch int) (float64, bool, error) {
		cmd := exec.CommandContext(ctx, python, "-", graph, strconv.Itoa(batch))
		cmd.Stdin = strings.NewReader(torchScript)
		var complaint bytes.Buffer
		cmd.Stderr = &complaint
		out, err := cmd.Output()
		if errors.Is(err, exec.ErrNotFound) || cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == noTorch {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, fmt.Errorf("%s: %w: %s", python, err, tail(complaint.String()))
		}
		us, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		return us, err == nil, err
	}
}

const noTorch = 3 // the script's exit status without torch or without a GPU

func tail(s string) string { return s[max(0, len(s)-500):] }
