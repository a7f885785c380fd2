//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"downbeat.dev/frontend/gateway"
)

// canaryCommand returns the commands that try a version on a share of its model's requests.
func canaryCommand() command {
	return command{name: "canary", summary: "try a new version of a model on a share of its requests: show, start, promote, rollback, end",
		run: func(ctx context.Context, args []string) error {
			return runNamed(ctx, "downbeat canary", canaryWords(), args, func(w io.Writer) {
				fmt.Fprint(w, usageOf("downbeat canary"))
				printCommands(w, canaryWords())
			})
		}}
}

func canaryWords() []command {
	return []command{
		{"show", "list the versions on trial and how their answers compare with the base version's", runCanaryShow},
		{"start", "put a version on trial, or change the shares of a trial", runCanaryStart},
		{"promote", "end the trial: the tried version answers all requests that name no version", canaryEnd("promote")},
		{"rollback", "end the trial: the base version answers all requests that name no version", canaryEnd("rollback")},
		{"end", "end the trial: the newest version answers all requests that name no version", canaryEnd("end")},
	}
}

// canaryFlags are the flags that all canary commands share.
type canaryFlags struct {
	*statusFlags
	fs *flag.FlagSet
}

func newCanaryFlags(word string) *canaryFlags {
	fs := flag.NewFlagSet("downbeat canary "+word, flag.ContinueOnError)
	return &canaryFlags{addStatusFlags(fs, "a gateway, or of several, separated by commas; each gateway has trials of its own"), fs}
}

// call sends the request to every gateway and prints each gateway's canaries afterwards.
func (f *canaryFlags) call(ctx context.Context, method, path string, body []byte) error {
	a, err := f.access()
	if err != nil {
		return err
	}

	// Go on after a gateway fails: the gateways share the requests, and the others must still get the change.
	var errs []error
	for at := range strings.SplitSeq(f.url, ",") {
		text, err := callServer(ctx, 10*time.Second, method, at, path, a, body)
		if err == nil {
			err = f.printCanaries(os.Stdout, at, text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.name, err))
		}
	}
	return errors.Join(errs...)
}

func (f *canaryFlags) printCanaries(out io.Writer, at string, text []byte) error {
	if f.format == "json" {
		_, err := out.Write(append(text, '\n'))
		return err
	}
	var all struct{ Canaries []gateway.CanaryStatus }
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return printCanaries(out, all.Canaries)
}

func runCanaryShow(ctx context.Context, args []string) error {
	f := newCanaryFlags("show")
	if err := parse(f.fs, args); err != nil {
		return err
	}
	return f.call(ctx, http.MethodGet, gateway.CanaryPath, nil)
}

func runCanaryStart(ctx context.Context, args []string) error {
	f := newCanaryFlags("start")

	var c gateway.Canary
	f.fs.StringVar(&c.Model, "model", "", "`model` to put on trial (required)")
	f.fs.StringVar(&c.Version, "version", "", "`version` to try; it need not be loaded yet (required)")
	f.fs.StringVar(&c.Base, "base", "", "base `version`, which answers the rest; empty: the newest version that is served now")
	f.fs.Float64Var(&c.Share, "share", 0, "`share` of the requests naming no version that the tried version answers, 0 to 1")
	f.fs.Float64Var(&c.Shadow, "shadow", 0, "`share` of the other requests of which the tried version gets a copy, 0 to 1; its answers are compared, not sent")
	f.fs.Float64Var(&c.Tolerance, "tolerance", 0, "largest `difference` between two numbers that count as the same: relative to the larger one, or absolute if both are below 1")
	if err := parse(f.fs, args); err != nil {
		return err
	}

	// The gateway checks the rest, since it knows the served models.
	if c.Model == "" || c.Version == "" {
		return usageErrorf("canary start: want -model and -version")
	}
	if !(c.Share >= 0 && c.Share <= 1) || !(c.Shadow >= 0 && c.Shadow <= 1) || !(c.Tolerance >= 0) {
		return usageErrorf("canary start: -share %v -shadow %v -tolerance %v: want 0 to 1, 0 to 1, and 0 or more", c.Share, c.Shadow, c.Tolerance)
	}
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return f.call(ctx, http.MethodPost, gateway.CanaryPath, body)
}

// canaryEnd returns the command that ends a trial in the way that word names.
func canaryEnd(word string) func(context.Context, []string) error {
	return func(ctx context.Context, args []string) error {
		f := newCanaryFlags(word)
		name := f.fs.String("model", "", "`model` whose trial ends (required)")
		if err := parse(f.fs, args); err != nil {
			return err
		}
		if *name == "" {
			return usageErrorf("canary %s: want -model", word)
		}
		return f.call(ctx, http.MethodPost, gateway.CanaryPath+"/"+url.PathEscape(*name)+"/"+word, nil)
	}
}

func printCanaries(out io.Writer, all []gateway.CanaryStatus) error {
	if len(all) == 0 {
		fmt.Fprintln(out, "No canary: requests that name no version go to the newest one.")
		return nil
	}

	// Print two rows per canary: the base version, then the version on trial.
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tVERSION\tSHARE\tGOOD\tBAD\tMEAN ms\tSHADOW SHARE\tSAME\tDIFFERENT\tFAILED\tSKIPPED\tMOST DIFFERENT")
	for _, c := range all {
		row := func(version string, share float64, e gateway.CanaryEnds) {
			mean := "-"
			if n := e.Good + e.Bad; n > 0 {
				mean = fmt.Sprintf("%.2f", 1000*e.Seconds/float64(n))
			}
			fmt.Fprintf(w, "%s\t%s\t%g\t%d\t%d\t%s", c.Model, version, share, e.Good, e.Bad, mean)
		}

		row(c.Base, 1-c.Share, c.BaseEnds)
		fmt.Fprintln(w, "\t-\t-\t-\t-\t-\t-")
		if c.Version == "" {
			continue
		}
		row(c.Version, c.Share, c.VersionEnds)
		n := c.Copies
		fmt.Fprintf(w, "\t%g\t%d\t%d\t%d\t%d\t%.3g\n", c.Shadow, n.Same, n.Different, n.Failed, n.Skipped, n.Difference)
	}
	return w.Flush()
}
