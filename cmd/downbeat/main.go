// Command downbeat serves deep-learning models under deadlines: scheduler, backends, gateway, and
// the tools to load, measure and check them, in one binary.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"downbeat.dev/deploy"
)

// A command is one word after "downbeat".
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string) error
}

const usage = `downbeat serves DNN models to requests that carry deadlines.

Usage: downbeat COMMAND [flags]        downbeat COMMAND --help        downbeat help config

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once

	os.Exit(exitCode(ctx, runLine(ctx, os.Args[1:])))
}

// runLine runs what the words after "downbeat" say.
func runLine(ctx context.Context, args []string) error {
	// The file is no command's own, so that its help is no command's either.
	if slices.Equal(args, []string{"help", "config"}) {
		return deploy.Help(os.Stdout)
	}
	return runNamed(ctx, "downbeat", commands(), args, func(w io.Writer) {
		fmt.Fprint(w, usage)
		list(w, commands())
		fmt.Fprint(w, footer)
	})
}

// exitCode prints what went wrong and tells how the process ends: 2 for a command line that cannot
// be understood, 130 where Ctrl-C cut a tool short, else 1.
func exitCode(ctx context.Context, err error) int {
	var usage deploy.UsageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	case errors.As(err, &usage):
		fmt.Fprintln(os.Stderr, "downbeat:", err)
		return 2

	// 130 is what shells report of a process that an interrupt ended.
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "downbeat: interrupted")
		return 130
	case ctx.Err() != nil: // what was under way says how it was cut short
		fmt.Fprintln(os.Stderr, "downbeat: interrupted:", err)
		return 130
	}

	fmt.Fprintln(os.Stderr, "downbeat:", err)
	return 1
}

// errUsage ends with exit code 2; what was wrong has been printed.
var errUsage = errors.New("usage")

// runNamed runs the command that args name; help prints what there is.
func runNamed(ctx context.Context, path string, all []command, args []string, help func(io.Writer)) error {
	if len(args) == 0 {
		help(os.Stderr)
		return errUsage
	}

	// A command is asked for help in three ways; they become its -h.
	switch args[0] {
	case "help", "-h", "-help", "--help":
		if len(args) == 1 {
			help(os.Stdout)
			return nil
		}

		// The capacity is cut, so that the caller's arguments are not written over.
		args = append(args[1:len(args):len(args)], "-h")
	case "-version", "--version":
		args = []string{"version"}
	}

	for _, c := range all {
		if c.name == args[0] {
			if wantsHelp(args[1:]) {
				introduceCommand(os.Stdout, path, c)
			}
			return c.run(ctx, args[1:])
		}
	}

	fmt.Fprintf(os.Stderr, "%s: unknown command %q; the commands are:\n", path, args[0])
	list(os.Stderr, all)
	return errUsage
}

// parse parses the flags of a command that takes no other words.
func parse(fs *flag.FlagSet, args []string) error {
	if err := deploy.ParseFlags(fs, args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return deploy.UsageError(fmt.Sprintf("unexpected %q: %s takes flags only", fs.Arg(0), fs.Name()))
	}
	return nil
}

// list prints each command with its summary, aligned.
func list(w io.Writer, all []command) {
	width := 0
	for _, c := range all {
		width = max(width, len(c.name))
	}
	for _, c := range all {
		fmt.Fprintf(w, "  %-*s  %s\n", width, c.name, c.summary)
	}
}
