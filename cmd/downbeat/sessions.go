//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"downbeat.dev/frontend/app"
)

func sessionsCommand() command {
	return command{"sessions", "list the sessions of applications and how well their promises are kept", runSessionsCommand}
}

func runSessionsCommand(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("downbeat sessions", flag.ContinueOnError)
	status := addStatusFlags(fs, "a gateway that serves applications")
	frames := fs.Int("frames", 0, "`number` of the latest frames of each application whose stages are drawn over time")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *frames < 0 {
		return usageErrorf("sessions: -frames %d: want 0 or more", *frames)
	}

	var x app.Status
	printed, err := status.ask(ctx, "/v2/downbeat/sessions", &x)
	if printed || err != nil {
		return err
	}
	return printSessions(os.Stdout, &x, *frames)
}

// printSessions prints a table of the sessions, then frames of each application.
func printSessions(out io.Writer, status *app.Status, frames int) error {
	if !slices.ContainsFunc(status.Applications, func(a app.ApplicationStatus) bool { return len(a.Sessions) > 0 }) {
		printFrames(out, status, frames)
		_, err := fmt.Fprintln(out, "No session is open.")
		return err
	}

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "APPLICATION\tSESSION\tRATE\tLATENCY\tFRAMES\tIN TIME\tLATE\tFAILED\tSKIPPED\tRECENT\tPROMISE")
	for i := range status.Applications {
		a := &status.Applications[i]
		for _, s := range a.Sessions {
			name := fmt.Sprint(s.Number)
			if s.Name != "" {
				name += " " + s.Name
			}

			promise := "kept"
			if s.Hurt {
				promise = "broken"
			}
			if s.Slowed > 0 {
				promise += fmt.Sprintf(", at %.4g/s", s.Slowed)
			}

			// Percentages count the frames so far; max avoids a division by zero for a session without frames.
			fmt.Fprintf(w, "%s\t%s\t%.4g/s\t%v\t%d\t%.2f %%\t%d\t%d\t%d\t%.1f %%\t%s\n", a.Name, name, s.Rate, s.Latency, s.Frames,
				100*float64(s.InTime)/float64(max(s.Frames, 1)), s.Late, s.Failed, s.Skipped, 100*s.Recent, promise)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	printFrames(out, status, frames)
	return nil
}

// printFrames draws the latest frames of each application.
func printFrames(out io.Writer, status *app.Status, frames int) {
	for i := range status.Applications {
		a := &status.Applications[i]
		for k := range min(frames, len(a.Latest)) {
			printFrame(out, a, &a.Latest[k])
		}
	}
}

// printFrame draws the steps of a frame over its budget, one character per fortieth.
func printFrame(out io.Writer, a *app.ApplicationStatus, f *app.FrameTrace) {
	const wide = 40
	fmt.Fprintf(out, "\n%s, session %d, %v of %v %s\n", a.Name, f.Session, f.Elapsed.Round(10*time.Microsecond), f.Budget.Round(time.Millisecond), f.Error)

	// The scale is the budget, or the frame's elapsed time if that is longer.
	column := func(t time.Duration) int {
		return min(wide, max(0, int(wide*t/max(f.Budget, f.Elapsed, 1))))
	}
	for j, s := range f.Steps {
		// Even a stage of no duration gets one column.
		from := min(column(s.From), wide-1)
		bar := strings.Repeat(" ", from) + strings.Repeat("█", max(1, column(s.To)-from))
		fmt.Fprintf(out, "  %-12.12s |%-*s| %8v %2d requests %s\n", a.Steps[j], wide, bar, (s.To - s.From).Round(10*time.Microsecond), s.Requests, s.End)
	}
}
