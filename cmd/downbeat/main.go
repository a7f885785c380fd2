// Command downbeat serves deep-learning models under deadlines: scheduler, backends, gateway, and the tools to load,
// measure and check them, in one binary.
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

// A command is one word after "downbeat", or after a command with subcommands.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string) error
}

const usage = `downbeat serves DNN models to requests that carry deadlines.

Usage:
  downbeat COMMAND [flags]   run a command
  downbeat COMMAND --help    explain a command and its flags
  downbeat help config       explain the configuration file

Commands:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once

	os.Exit(exitCode(ctx, runLine(ctx, os.Args[1:])))
}

// runLine runs the command that args name.
func runLine(ctx context.Context, args []string) error {
	// "help config" explains the configuration file, which is not a command.
	if slices.Equal(args, []string{"help", "config"}) {
		return deploy.Help(os.Stdout)
	}
	return runNamed(ctx, "downbeat", commands(), args, func(w io.Writer) {
		fmt.Fprint(w, usage)
		printCommands(w, commands())
		fmt.Fprint(w, footer)
	})
}

// exitCode prints err and returns the exit code: 2 for an invalid command line, 130 for an interrupt, else 1.
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

	// Shells report 130 for a process that an interrupt ended.
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "downbeat: interrupted")
		return 130
	case ctx.Err() != nil: // the interrupted command says how far it came
		fmt.Fprintln(os.Stderr, "downbeat: interrupted:", err)
		return 130
	}

	fmt.Fprintln(os.Stderr, "downbeat:", err)
	return 1
}

// errUsage means exit code 2; the message has been printed.
var errUsage = errors.New("usage")

// runNamed runs the command that args name. help prints the list of commands.
func runNamed(ctx context.Context, path string, all []command, args []string, help func(io.Writer)) error {
	if len(args) == 0 {
		help(os.Stderr)
		return errUsage
	}

	// "help X", "-h X" and "--help X" all become "X -h".
	switch args[0] {
	case "help", "-h", "-help", "--help":
		if len(args) == 1 {
			help(os.Stdout)
			return nil
		}

		// Limit the capacity, so that append does not overwrite the caller's arguments.
		args = append(args[1:len(args):len(args)], "-h")
	case "-version", "--version":
		args = []string{"version"}
	}

	for _, c := range all {
		if c.name == args[0] {
			if wantsHelp(args[1:]) {
				introduceCommand(os.Stdout, path, c, args[1:])
			}
			return c.run(ctx, args[1:])
		}
	}

	fmt.Fprintf(os.Stderr, "%s: unknown command %q; the commands are:\n", path, args[0])
	printCommands(os.Stderr, all)
	return errUsage
}

// parse parses the flags of a command without positional arguments.
func parse(fs *flag.FlagSet, args []string) error {
	if err := deploy.ParseFlags(fs, args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return usageErrorf("unexpected %q: %s takes flags only", fs.Arg(0), fs.Name())
	}
	return nil
}

// usageOf returns the head of the help of a command that has subcommands.
func usageOf(path string) string {
	return fmt.Sprintf("Usage: %[1]s COMMAND [flags]; %[1]s COMMAND --help explains one of these:\n", path)
}

// printCommands prints each command with its summary, aligned.
func printCommands(w io.Writer, all []command) {
	width := 0
	for _, c := range all {
		width = max(width, len(c.name))
	}
	for _, c := range all {
		fmt.Fprintf(w, "  %-*s  %s\n", width, c.name, c.summary)
	}
}
