package overhead

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// writeEmulated writes an emulated model with α and β in ms.
func writeEmulated(dir, name string, profile [2]string) error {
	if err := os.MkdirAll(filepath.Join(dir, name, "1"), 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf(`platform: "emulated" max_batch_size: 4
input [ { name: "x" data_type: TYPE_UINT8 dims: [ %d ] } ] output [ { name: "y" data_type: TYPE_UINT8 dims: [ %d ] } ]
parameters { key: "alpha_ms" value { string_value: "%s" } } parameters { key: "beta_ms" value { string_value: "%s" } }
parameters { key: "slo_ms" value { string_value: "80" } }`, serveBytes, outputBytes, profile[0], profile[1])
	return os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(text), 0o644)
}

// startServe runs the process and returns the addresses of its interfaces; ended is closed when it has ended.
func (c ServeConfig) startServe(ctx context.Context, models string, processors int) (addresses map[string]string, ended chan struct{}, err error) {
	// The kernel chooses the ports, so that several measurements can run on one host.
	ended = make(chan struct{})
	flags := []string{"-models", models, "-emulate", "1", "-http", "127.0.0.1:0", "-grpc", "127.0.0.1:0", "-listen", "127.0.0.1:0"}
	cmd := exec.CommandContext(ctx, c.Command[0], slices.Concat(c.Command[1:], flags)...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(processors))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = patience

	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		close(ended)
		return nil, ended, err
	}

	// Read the log until the end: a process blocks when nobody empties its pipe.
	told := make(chan map[string]string, 1)
	go func() {
		defer close(ended)
		told <- readAddresses(log)
		_, _ = io.Copy(io.Discard, log)
		_ = cmd.Wait() // it was told to end
	}()

	select {
	case addresses = <-told:
	case <-time.After(patience):
	}
	if addresses["rest"] == "" || addresses["scheduler"] == "" {
		return nil, ended, fmt.Errorf("%s does not tell where it listens", strings.Join(c.Command, " "))
	}
	return addresses, ended, nil
}

var logged = regexp.MustCompile(`msg="(scheduler) listens" address=(\S+)|msg="gateway listens".* rest=(\S+) grpc=(\S+)`)

// readAddresses reads the process's log up to the line of the gateway, which starts last.
func readAddresses(log io.Reader) map[string]string {
	found := map[string]string{}
	for lines := bufio.NewScanner(log); found["rest"] == "" && lines.Scan(); {
		if m := logged.FindStringSubmatch(lines.Text()); m != nil && m[1] != "" {
			found["scheduler"] = m[2]
		} else if m != nil {
			found["rest"], found["grpc"] = m[3], m[4]
		}
	}
	return found
}
