package measure

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/profile"
)

// openLanes loads m on every lane of an emulated GPU, with two slots each.
func openLanes(t *testing.T, m *device.Model, o emu.Options) (all []Lane) {
	t.Helper()
	opened, err := emu.OpenLanes(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range opened {
		l := Lane{Executor: e, Slots: devicetest.Slots(t, 2, device.SlotBytes([]*device.Model{m}))}
		if err := devicetest.Load(e, m, l.Slots); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		all = append(all, l)
	}
	return all
}

// counted notes the batches that a lane has under way.
type counted struct {
	device.Executor
	rows []atomic.Int64 // under way, by rows
}

func (c *counted) Submit(b device.Batch) error {
	c.rows[b.Rows].Add(1)
	return c.Executor.Submit(b)
}

func (c *counted) Wait(b device.Batch) error {
	defer c.rows[b.Rows].Add(-1)
	return c.Executor.Wait(b)
}

// TestOtherLanesRunTheMeasuredSize: whenever a batch is timed, every other lane runs batches of its size and of no other,
// when the timed one begins and when it ends.
func TestOtherLanesRunTheMeasuredSize(t *testing.T) {
	m := emulatedModel(t, 4, 2*time.Millisecond, time.Millisecond)
	all := openLanes(t, m, emu.Options{Lanes: 3})
	var others []*counted
	for i := range all[1:] {
		c := &counted{all[i+1].Executor, make([]atomic.Int64, 5)}
		all[i+1].Executor = c
		others = append(others, c)
	}

	beside, err := NewBeside(m, all[1:], 1)
	if err != nil {
		t.Fatal(err)
	}
	timed := 0
	check := func(rows int) {
		for i, c := range others {
			for n := range c.rows {
				if under := c.rows[n].Load(); n != rows && under != 0 || n == rows && under == 0 {
					t.Errorf("beside a batch of %d lane %d has %d of %d", rows, i+1, under, n)
				}
			}
		}
	}
	first := On(all[0])
	timer := beside.Among(func(b device.Batch) (time.Duration, error) {
		check(b.Rows)
		took, err := first(b)
		check(b.Rows)
		timed++
		return took, err
	})
	res, err := Run(context.Background(), timer, m, all[0].Slots[0], Options{Rounds: 5})
	beside.End()
	if err != nil || timed < 20 {
		t.Fatalf("%d batches timed, %v", timed, err)
	}

	// The kernels of all three lanes use all of the GPU, so each takes what its profile says.
	for _, s := range res.Sizes {
		if s.P50 < m.Profile.Exec(s.Batch)*9/10 {
			t.Errorf("a batch of %d takes %v, want %v", s.Batch, s.P50, m.Profile.Exec(s.Batch))
		}
	}
	for i, c := range others {
		for n := range c.rows {
			if under := c.rows[n].Load(); under != 0 {
				t.Errorf("lane %d has %d batches of %d at the end", i+1, under, n)
			}
		}
	}
}

// TestALaneThatFailsEndsTheMeasurement: its error is the measurement's, and nothing hangs.
func TestALaneThatFailsEndsTheMeasurement(t *testing.T) {
	m := emulatedModel(t, 2, time.Millisecond, 0)
	all := openLanes(t, m, emu.Options{Lanes: 2, Plan: emu.Planned{After: 20, Fault: emu.Lost}})
	beside, err := NewBeside(m, all[1:], 1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Run(context.Background(), beside.Among(On(all[0])), m, all[0].Slots[0], Options{Rounds: 200})
	beside.End()
	if !errors.Is(err, device.ErrLost) {
		t.Errorf("%v, want %v", err, device.ErrLost)
	}
}

func linear(t *testing.T, alpha, beta time.Duration) *profile.Profile {
	t.Helper()
	p, err := profile.Linear(alpha, beta, 16)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestChooseLanes(t *testing.T) {
	const ms = time.Millisecond
	whole := Split{1, linear(t, ms, 4*ms)} // 16 in 20 ms: 800/s
	for name, c := range map[string]struct {
		splits []Split
		slo    time.Duration
		want   int
	}{
		"two fill what one leaves":       {[]Split{whole, {2, linear(t, 3*ms/2, 4*ms)}}, 100 * ms, 2},
		"a gain of a twentieth":          {[]Split{whole, {2, linear(t, 19*ms/10, 8*ms)}}, 100 * ms, 1},
		"the best of several":            {[]Split{whole, {2, linear(t, 3*ms/2, 4*ms)}, {4, linear(t, 5*ms/2, 4*ms)}}, 100 * ms, 4},
		"four are too slow for the SLO":  {[]Split{whole, {2, linear(t, 3*ms/2, 4*ms)}, {4, linear(t, 8*ms, 4*ms)}}, 20 * ms, 2},
		"the target batch becomes small": {[]Split{whole, {2, linear(t, 2*ms, 8*ms)}}, 24 * ms, 1},
		"no batch in time at all":        {[]Split{whole, {2, linear(t, ms, 4*ms)}}, 4 * ms, 1},
	} {
		var gains []float64
		for _, s := range c.splits {
			gains = append(gains, s.Gain(c.splits[0], c.slo))
		}
		if got, gain := ChooseLanes(c.splits, gains); got != c.want || gain < 1 {
			t.Errorf("%s: %d lanes with a gain of %.2f of %.2f, want %d", name, got, gain, gains, c.want)
		}
	}

	if b := whole.TargetBatch(20 * ms); b != 6 {
		t.Errorf("target batch %d within 10 ms, want 6", b)
	}
}

func TestSplitsArePrinted(t *testing.T) {
	const ms = time.Millisecond
	var text strings.Builder
	if err := PrintSplits(&text, []Split{{1, linear(t, ms, 4*ms)}, {2, linear(t, 3*ms/2, 4*ms)}}, 100*ms); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	for i, want := range map[int]string{0: "lanes 2: ℓ(b) ms", 1: "5.500", 16: "1143", 18: "lanes 2: target batch 16", 19: "choose lanes 2: 1.43 times lanes 1"} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("line %d of %q does not say %q", i, lines, want)
		}
	}
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "lanes 1: target batch 16") }) {
		t.Errorf("no line about one lane in %q", lines)
	}
}
