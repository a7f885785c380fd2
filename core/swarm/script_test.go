package swarm

import (
	"strings"
	"testing"
)

// TestScriptRoundTrip shows that drawn options, written as a script, are read as the same options.
func TestScriptRoundTrip(t *testing.T) {
	for seed := range uint64(200) {
		o := Draw(seed)
		if again, err := ParseScript("# a comment\n\n" + o.Script()); err != nil || again != o {
			t.Fatalf("seed %d: %+v, then %+v (%v)", seed, o, again, err)
		}
	}
	for text, want := range map[string]string{
		"Hangs":         "line 1: \"Hangs\": want the name",
		"\nHung 3":      "line 2: \"Hung 3\": want the name",
		"Hangs many":    "line 1: Hangs: \"many\"",
		"Window -1":     "line 1: Window: \"-1\"",
		"Load 1\nTight": "line 2",
	} {
		if _, err := ParseScript(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestShrinkFindsWhatMatters takes a run with all kinds of faults in which the watchdog cuts a backend. Little is
// left after everything unnecessary is removed, and the script replays the cut.
func TestShrinkFindsWhatMatters(t *testing.T) {
	cut := func(o Options) bool {
		r, err := Run(o)
		return err == nil && r.Cuts > 0
	}
	for seed := uint64(1); ; seed++ {
		o := Draw(seed)
		if o.Requests > 1000 || o.Hangs+o.Deaths+o.Breaks == 0 || !cut(o) {
			continue
		}

		small := Shrink(o, 400, cut)
		script := small.Script()
		before, after := strings.Count(o.Script(), "\n"), strings.Count(script, "\n")
		t.Logf("seed %d: %d lines became %d:\n%s", seed, before, after, script)
		if after > 14 || after >= before {
			t.Errorf("the script has %d lines, want at most 14", after)
		}
		if again, err := ParseScript(script); err != nil || !cut(again) {
			t.Errorf("the script does not replay: %v", err)
		}
		return
	}
}
