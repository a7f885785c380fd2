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
	"strconv"
	"time"

	"downbeat.dev/core/engine"
)

// livePlanners are the planning commands that need a running scheduler.
func livePlanners() []command {
	return []command{
		{"show", "list the models of each GPU and the state of the latest plan", runPlanShow},
		{"dry-run", "propose a plan and its steps, and apply nothing", runPlanProposal},
		{"apply", "apply a plan while requests are served: one that dry-run -o json wrote, or a new proposal", runPlanApply},
		{"rollback", "restore what was there before the latest plan, also while the plan is under way", runPlanRollback},
	}
}

// planFlags are the flags that all of these commands share.
type planFlags struct {
	*statusFlags
	fs *flag.FlagSet

	// Of a proposal only.
	parts int
	moves float64
}

func newPlanFlags(word string) *planFlags {
	fs := flag.NewFlagSet("downbeat plan "+word, flag.ContinueOnError)
	return &planFlags{statusFlags: addStatusFlags(fs, "downbeat serve's gateway, or of a scheduler's -metrics"), fs: fs}
}

// parse parses the flags and reads the files that they name.
func (f *planFlags) parse(args []string) (access, error) {
	if err := parse(f.fs, args); err != nil {
		return access{}, err
	}
	if f.parts < 0 || !(f.moves >= 0 && f.moves <= 1) {
		return access{}, usageErrorf("%s: -parts %d -moves %v: want 0 or more, and 0 to 1", f.name, f.parts, f.moves)
	}
	return f.access()
}

// addProposalFlags registers the flags of a proposal.
func (f *planFlags) addProposalFlags() {
	f.fs.IntVar(&f.parts, "parts", 0, "`number` of sub-clusters per kind of GPU; 0: as few as memory allows")
	f.fs.Float64Var(&f.moves, "moves", 0.05, "`share` of the models that may move, weighted by their load time, 0 to 1")
}

// proposalPath returns the path and the query of a proposal.
func (f *planFlags) proposalPath() string {
	q := url.Values{"parts": {strconv.Itoa(f.parts)}, "moves": {strconv.FormatFloat(f.moves, 'g', -1, 64)}}
	return "/v2/downbeat/plan/proposal?" + q.Encode()
}

func runPlanShow(ctx context.Context, args []string) error {
	f := newPlanFlags("show")
	a, err := f.parse(args)
	if err != nil {
		return err
	}
	text, err := fetchStatus(ctx, f.url, "/v2/downbeat/plan", a)
	if err != nil {
		return fmt.Errorf("plan show: %w", err)
	}
	return f.printStatus(os.Stdout, text)
}

func runPlanProposal(ctx context.Context, args []string) error {
	f := newPlanFlags("dry-run")
	f.addProposalFlags()
	steps := f.fs.Bool("steps", false, "list every step, too; -o json always does")
	a, err := f.parse(args)
	if err != nil {
		return err
	}
	text, err := fetchStatus(ctx, f.url, f.proposalPath(), a)
	if err != nil {
		return fmt.Errorf("plan dry-run: %w", err)
	}

	// Pass JSON on unchanged: apply -f reads it.
	if f.format == "json" {
		_, err = os.Stdout.Write(append(text, '\n'))
		return err
	}
	var p engine.ProposedPlan
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("plan dry-run: %s: %w", f.url, err)
	}
	return printProposal(os.Stdout, &p, *steps)
}

func runPlanApply(ctx context.Context, args []string) error {
	f := newPlanFlags("apply")
	f.addProposalFlags()
	file := f.fs.String("f", "", "`file` written by dry-run -o json, or - for standard input; empty: apply a new proposal")
	wait := f.fs.Bool("wait", false, "wait until the plan has ended")
	a, err := f.parse(args)
	if err != nil {
		return err
	}

	var plan []byte
	switch *file {
	case "":
		plan, err = fetchStatus(ctx, f.url, f.proposalPath(), a)
	case "-":
		plan, err = io.ReadAll(os.Stdin)
	default:
		plan, err = os.ReadFile(*file)
	}
	if err != nil {
		return fmt.Errorf("plan apply: %w", err)
	}

	text, err := postPlan(ctx, f.url, "/v2/downbeat/plan", a, plan)
	if err == nil && *wait {
		text, err = f.awaitPlan(ctx, a)
	}
	if err != nil {
		return fmt.Errorf("plan apply: %w", err)
	}
	return f.printStatus(os.Stdout, text)
}

func runPlanRollback(ctx context.Context, args []string) error {
	f := newPlanFlags("rollback")
	wait := f.fs.Bool("wait", false, "wait until the rollback has ended")
	a, err := f.parse(args)
	if err != nil {
		return err
	}
	text, err := postPlan(ctx, f.url, "/v2/downbeat/plan/rollback", a, nil)
	if err == nil && *wait {
		text, err = f.awaitPlan(ctx, a)
	}
	if err != nil {
		return fmt.Errorf("plan rollback: %w", err)
	}
	return f.printStatus(os.Stdout, text)
}

// awaitPlan polls the scheduler until no plan is under way.
func (f *planFlags) awaitPlan(ctx context.Context, a access) ([]byte, error) {
	for {
		text, err := fetchStatus(ctx, f.url, "/v2/downbeat/plan", a)
		if err != nil {
			return nil, err
		}
		var s engine.PlanStatus
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, err
		}
		if s.State != engine.PlanApplying && s.State != engine.PlanRollingBack {
			return text, nil
		}

		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), fmt.Errorf("plan %d is still %s", s.Number, s.State))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// postPlan sends a plan or a rollback order.
func postPlan(ctx context.Context, url, path string, a access, body []byte) ([]byte, error) {
	return callServer(ctx, 30*time.Second, http.MethodPost, url, path, a, body)
}
