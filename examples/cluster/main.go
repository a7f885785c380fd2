// Command cluster is a deployment of three processes on one host: it starts itself as a scheduler and as a backend,
// and sends requests as a client. Across hosts, set other addresses, a secret and certificates (docs/DEPLOYMENT.md).
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"downbeat.dev"
	"downbeat.dev/frontend"
)

func main() {
	role := flag.String("role", "", "what this process is: scheduler or backend; empty: the client that starts both")
	scheduler := flag.String("scheduler", "", "address of the scheduler, for a backend")
	models := flag.String("models", "../models", "model repository, for a backend")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	config := downbeat.Default()
	config.Models, config.Emulate, config.Patient = *models, 2, true
	var err error
	switch *role {
	case "scheduler":
		config.Roles, config.Listen = downbeat.Scheduler, "127.0.0.1:0"
		err = serveRole(ctx, config)
	case "backend":
		config.Roles, config.Scheduler = downbeat.Backend, *scheduler
		err = serveRole(ctx, config)
	default:
		err = sendThrough(ctx, *models)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// serveRole runs one part until it is interrupted, and prints its address.
func serveRole(ctx context.Context, config downbeat.Config) error {
	system, err := downbeat.Start(ctx, config)
	if err != nil {
		return err
	}
	fmt.Println(system.Config().Listen)
	err = system.Wait(ctx)
	return errors.Join(err, system.Close())
}

// sendThrough starts the other two processes and sends a request through them.
func sendThrough(ctx context.Context, models string) error {
	address, stop, err := startRole("-role", "scheduler")
	if err != nil {
		return err
	}
	defer stop()
	_, stop, err = startRole("-role", "backend", "-scheduler", address, "-models", models)
	if err != nil {
		return err
	}
	defer stop()

	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	client, err := frontend.Dial(ctx, frontend.Options{Scheduler: address})
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.AwaitModel(ctx, "classifier"); err != nil {
		return err
	}

	input, err := client.NewInput("classifier")
	if err != nil {
		return err
	}
	defer input.Free()
	clear(input.Bytes())
	result, err := client.Infer(ctx, "classifier", input)
	if err != nil {
		return err
	}
	defer result.Release()
	fmt.Printf("three processes: answered after %v\n", result.Elapsed.Round(time.Microsecond))
	return nil
}

// startRole runs this program in another role. It returns the first line that the process prints and a function that
// stops it.
func startRole(args ...string) (line string, stop func(), err error) {
	program, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}

	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(line), stop, nil
}
