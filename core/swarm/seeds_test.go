package swarm

import (
	"errors"
	"flag"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	seeds = flag.Int("seeds", seedsSampled, "how many seeds TestSwarm runs")
	seed  = flag.Uint64("seed", 1, "the first seed of TestSwarm")
)

// seedsSampled is the number of seeds of a plain test run, from 1: enough for every fault and every reason.
const seedsSampled = 120

const (
	// seedMost is the longest time of a seed, with its shrinking, on a machine with any load. 10 ms are usual, and a
	// seed that takes this long does not end.
	seedMost = 10 * time.Minute
	// hangsMost is the number of endless seeds that a block leaves behind: each of them keeps a processor busy.
	hangsMost = 3
	// shrunkMost is the number of failing seeds of a block that are shrunk.
	shrunkMost = 10
	// tellEvery is the number of seeds between two reports of progress.
	tellEvery = 2000
)

// block is a range of consecutive seeds. A seed that fails does not keep the others from running.
type block struct {
	first, last uint64
	draw        func(seed uint64) Options
	run         func(Options) (*Report, error)
	most        time.Duration // of one seed
	tell        func(format string, a ...any)
	sum         Report // of the seeds that passed
	failed      []failedSeed
}

type failedSeed struct {
	seed uint64
	err  error
}

// errEndless is the error of a seed that takes longer than its block allows.
var errEndless = errors.New("endless")

// runSeeds runs the seeds that the flags name, and lists the failed ones at the end.
func runSeeds(t *testing.T, draw func(seed uint64) Options, run func(Options) (*Report, error)) *Report {
	t.Helper()
	b := block{first: *seed, last: *seed + uint64(*seeds) - 1, draw: draw, run: run, most: seedMost, tell: t.Logf}
	t.Logf("seeds %d to %d", b.first, b.last)
	next := b.runAll()

	t.Logf("%+v", b.sum)
	if len(b.failed) > 0 {
		t.Errorf("%d of %d seeds failed: %s\nreplay: go test ./core/swarm -run '%s$' -seeds=1 -seed=N",
			len(b.failed), next-b.first, b.list(), t.Name())
	}
	if next <= b.last {
		t.Errorf("the block stopped behind %d seeds that do not end: go on with -seed=%d -seeds=%d", hangsMost, next, b.last-next+1)
	}
	return &b.sum
}

// runAll returns the seed after the last one that ran.
func (b *block) runAll() (next uint64) {
	hangs := 0
	for n := b.first; n <= b.last; n++ {
		r, err := b.try(n)
		switch {
		case err == nil:
			b.sum.add(r)
		default:
			b.tell("%v", err)
			b.failed = append(b.failed, failedSeed{n, err})
		}

		if errors.Is(err, errEndless) {
			if hangs++; hangs == hangsMost {
				return n + 1
			}
		}
		if done := n - b.first + 1; done%tellEvery == 0 {
			b.tell("%d seeds, up to %d; failed: %s", done, n, b.list())
		}
	}
	return b.last + 1
}

// list names the failed seeds, each with the checker that objected.
func (b *block) list() string {
	var all []string
	for _, f := range b.failed {
		all = append(all, fmt.Sprintf("%d (%s)", f.seed, checkerOf(f.err)))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// try runs a seed. A seed that does not end, or that panics, has failed.
func (b *block) try(n uint64) (*Report, error) {
	type result struct {
		r   *Report
		err error
	}
	ended := make(chan result, 1)
	shrinks := len(b.failed) < shrunkMost

	go func() {
		defer func() {
			if why := recover(); why != nil {
				ended <- result{err: fmt.Errorf("seed %d: panic: %v\n%s", n, why, debug.Stack())}
			}
		}()
		r, err := b.judge(n, shrinks)
		ended <- result{r, err}
	}()

	limit := time.NewTimer(b.most)
	defer limit.Stop()
	select {
	case x := <-ended:
		return x.r, x.err
	case <-limit.C:
		stacks := make([]byte, 64<<10)
		return nil, fmt.Errorf("seed %d: %w: it has not ended after %v:\n%s", n, errEndless, b.most, stacks[:runtime.Stack(stacks, true)])
	}
}

// judge runs a seed, and every 16th seed twice. A failing run is shrunk to a script.
func (b *block) judge(n uint64, shrinks bool) (*Report, error) {
	r, err := b.run(b.draw(n))
	switch {
	case err != nil && shrinks:
		small := Shrink(b.draw(n), 500, func(o Options) bool { _, other := b.run(o); return other != nil && checkerOf(other) == checkerOf(err) })
		_, why := b.run(small)
		return nil, fmt.Errorf("%w\nas a short script, which fails with %v:\n%s", err, why, small.Script())
	case err != nil || n%16 != 0:
		return r, err
	}

	if again, err := b.run(b.draw(n)); err != nil || again.Hash != r.Hash {
		return nil, fmt.Errorf("C9: seed %d: the second run's trace differs (%v): %+v, then %+v", n, err, r, again)
	}
	return r, nil
}

// checkerOf returns the checker that objected, or another cause.
func checkerOf(err error) string {
	if found := objection.FindStringSubmatch(err.Error()); found != nil {
		return found[1]
	}
	return "?"
}

var objection = regexp.MustCompile(`\b([CV]\d+|panic|endless):`)

// TestABlockGoesOnBehindSeedsThatFail: if a checker objects, or a seed panics or does not end, the later seeds still
// run, and each failed seed is named.
func TestABlockGoesOnBehindSeedsThatFail(t *testing.T) {
	var ran []uint64
	b := block{first: 1, last: 8, draw: func(n uint64) Options { return Options{Seed: n} }, most: seedMost, tell: t.Logf}
	b.run = func(o Options) (*Report, error) {
		switch o.Seed {
		case 3, 4:
			return nil, fmt.Errorf("seed %d: C8: late", o.Seed)
		case 7:
			panic("index out of range")
		}
		ran = append(ran, o.Seed)
		return &Report{Calls: 1}, nil
	}
	if next := b.runAll(); next != 9 || b.sum.Calls != 5 || b.list() != "3 (C8), 4 (C8), 7 (panic)" || !slices.Equal(ran, []uint64{1, 2, 5, 6, 8}) {
		t.Errorf("next %d, %d passed: %v, failed: %s", next, b.sum.Calls, ran, b.list())
	}

	// Each endless seed keeps a processor busy, so end them after the test.
	free := make(chan struct{})
	defer close(free)
	b = block{first: 1, last: 8, draw: b.draw, most: time.Millisecond, tell: t.Logf}
	b.run = func(o Options) (*Report, error) {
		<-free
		return &Report{}, nil
	}
	if next := b.runAll(); next != 4 || b.list() != "1 (endless), 2 (endless), 3 (endless)" {
		t.Errorf("next %d, failed: %s", next, b.list())
	}
}
