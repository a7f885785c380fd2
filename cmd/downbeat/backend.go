package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/deploy"
	"downbeat.dev/rdma"
)

// drainMax is how long a backend that was told to stop finishes what it holds.
const drainMax = 10 * time.Second

// backendCommand runs a backend alone, connected to a scheduler over TCP.
func backendCommand() command {
	return command{name: "backend", summary: "fetch, execute and answer batches for a scheduler", run: runBackend}
}

func runBackend(ctx context.Context, args []string) error {
	var name, subCluster, cores string
	c, rest, err := deploy.Parse("backend", args, func(fs *flag.FlagSet) {
		fs.StringVar(&name, "name", "", "how the scheduler calls this backend (default this host's `name`)")
		fs.StringVar(&subCluster, "sub-cluster", "", "`name` of the sub-cluster that this backend belongs to")
		fs.StringVar(&cores, "cores", "", "pin one executor to each core of this `list`, such as 2,3, instead of -executors")
	})
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return fmt.Errorf("backend: %q: no words are expected after the flags", rest[0])
	}
	o, err := backendOptions(c)
	if err != nil {
		return err
	}
	o.Name, o.SubCluster = name, subCluster
	if o.Cores, err = coreList(cores); err != nil {
		return err
	}
	s, err := backend.Start(ctx, o)
	if err != nil {
		return err
	}
	<-ctx.Done()
	o.Logger.Info("draining", "limit", drainMax)
	stop, cancel := context.WithTimeout(context.Background(), drainMax)
	defer cancel()
	return s.Stop(stop)
}

// backendOptions turns the configuration into what a backend needs; serve uses it as well.
func backendOptions(c deploy.Config) (backend.Options, error) {
	token, err := c.Token()
	if err != nil {
		return backend.Options{}, err
	}
	server, client, err := c.TLS()
	if err != nil {
		return backend.Options{}, err
	}
	data := rdma.Config{Listen: c.Data, Token: token}
	if c.Provider != "auto" {
		data.Providers = []string{c.Provider}
	}
	if server != nil { // the data plane accepts and dials with one configuration
		data.TLS = server.Clone()
		data.TLS.RootCAs = client.RootCAs
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return backend.Options{}, err
	}
	return backend.Options{Scheduler: c.Scheduler, Token: token, TLS: client, Models: c.Models, Executors: c.ExecutorCount(), Emulate: c.Emulate,
		Data: data, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))}, nil
}

func coreList(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var cores []int
	for _, word := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil {
			return nil, errors.New("cores: " + strconv.Quote(text) + ": want numbers separated by commas, such as 2,3")
		}
		cores = append(cores, n)
	}
	return cores, nil
}
