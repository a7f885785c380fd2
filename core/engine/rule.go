package engine

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
)

// A drop is told apart by the rule that made it: the reason that the request's frontend was given, and where that is
// DeadlineCannotBeMet, which decision came to it.
const (
	ruleArrivedLate = ruleFirst + iota // it had less time left than any variant takes
	ruleExpired                        // it was queued until it was too late for a batch of one
	ruleWindowed                       // it was given up for those behind it
	ruleLeftBehind                     // it allowed no batch that keeps up with the load
	ruleCount

	ruleFirst = int(model.ReasonCount) // before it, rules are reasons
)

// dropCounts are requests that ended without an answer, by rule. Under DeadlineCannotBeMet are those that their backend
// found too late.
type dropCounts [ruleCount]uint64

// ruleOf returns the rule of a drop whose deadline could not be met.
func ruleOf(d *sched.Drop) int {
	switch d.Rule {
	case sched.Windowed:
		return ruleWindowed
	case sched.LeftBehind:
		return ruleLeftBehind
	}
	return ruleExpired
}

// countDrop notes which rule dropped a request whose deadline could not be met.
func (c *modelCount) countDrop(rule int) { c.dropped[rule-ruleFirst]++ }

// dropCounts returns what was dropped since the engine started.
func (c *modelCount) dropCounts() (n dropCounts) {
	copy(n[:], c.outcomes[:])
	for i, more := range c.dropped {
		n[model.DeadlineCannotBeMet] -= more
		n[ruleFirst+i] = more
	}
	return n
}

// rules names the rules that are not told by their reason alone, and says what they are.
var rules = map[int][2]string{
	int(model.DeadlineCannotBeMet): {"late at the GPU", "its backend could not start the batch in time"},
	int(model.DeadlinePast):        {"deadline past", "its deadline was past when it arrived"},
	int(model.QueueFull):           {"queue full", "the queue was as long as it may be, and its deadline the latest"},
	ruleArrivedLate:                {"arrived too late", "it had less time left than the quickest variant takes"},
	ruleExpired:                    {"no GPU in time", "no GPU came while a batch of one could still meet its deadline"},
	ruleWindowed:                   {"window", "given up at a grant, so that those behind it are answered in time"},
	ruleLeftBehind:                 {"left behind", "the batches that it allowed were too small to keep up with the load"},
}

// describeRule names a rule, the reason that frontends are given, and what the rule says.
func describeRule(rule int) (name, reason, text string) {
	reason = model.DeadlineCannotBeMet.String()
	if rule < ruleFirst {
		reason = model.Reason(rule).String()
	}
	if r, ok := rules[rule]; ok {
		return r[0], reason, r[1]
	}
	return reason, reason, ""
}
