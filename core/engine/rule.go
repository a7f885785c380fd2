package engine

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
)

// Drops are counted by rule: the reason told to the request's frontend and, for DeadlineCannotBeMet, the decision
// that led to it.
const (
	ruleArrivedLate = ruleFirst + iota // it arrived with less time left than any variant takes
	ruleExpired                        // it waited until even a batch of one was too late
	ruleWindowed                       // it was given up in favour of those behind it
	ruleLeftBehind                     // it allowed no batch that keeps up with the load
	ruleCount

	ruleFirst = int(model.ReasonCount) // rules below this are reasons
)

// dropCounts counts requests that ended without an answer, by rule. DeadlineCannotBeMet itself counts those that
// their backend found too late.
type dropCounts [ruleCount]uint64

// ruleOf returns the rule of a drop with DeadlineCannotBeMet.
func ruleOf(d *sched.Drop) int {
	switch d.Rule {
	case sched.Windowed:
		return ruleWindowed
	case sched.LeftBehind:
		return ruleLeftBehind
	}
	return ruleExpired
}

// countDrop counts a drop with DeadlineCannotBeMet by its rule.
func (c *modelCount) countDrop(rule int) { c.dropped[rule-ruleFirst]++ }

// dropCounts returns the drops since the engine started.
func (c *modelCount) dropCounts() (n dropCounts) {
	copy(n[:], c.outcomes[:])
	for i, more := range c.dropped {
		n[model.DeadlineCannotBeMet] -= more
		n[ruleFirst+i] = more
	}
	return n
}

// rules has each rule's name and description.
var rules = map[int][2]string{
	int(model.DeadlineCannotBeMet): {"late at the GPU", "its backend could not start the batch in time"},
	int(model.DeadlinePast):        {"deadline past", "its deadline was past when it arrived"},
	int(model.QueueFull):           {"queue full", "the queue was as long as it may be, and its deadline the latest"},
	int(model.UnknownModel):        {"unknown model", "no such model was served when it arrived"},
	int(model.Canceled):            {"canceled", "its caller gave up"},
	int(model.NoBackend):           {"no backend", "no GPU served a variant"},
	int(model.BackendLost):         {"backend lost", "its backend was lost with the batch, and no time was left to try again"},
	int(model.ExecutionFailed):     {"execution failed", "its batch failed on the GPU"},
	int(model.InputUnavailable):    {"input unavailable", "its backend could not read the input from the frontend"},
	int(model.FloorTooHigh):        {"accuracy floor", "no served variant reaches its floor"},
	ruleArrivedLate:                {"arrived too late", "it had less time left, or would have when its input is there, than the quickest variant takes"},
	ruleExpired:                    {"no GPU in time", "no GPU came while a batch of one could still meet its deadline"},
	ruleWindowed:                   {"window", "given up at a grant, so that those behind it are answered in time"},
	ruleLeftBehind:                 {"left behind", "the batches that it allowed were too small to keep up with the load"},
}

// describeRule returns a rule's name, the reason told to frontends, and a description.
func describeRule(rule int) (name, reason, text string) {
	reason = model.DeadlineCannotBeMet.String()
	if rule < ruleFirst {
		reason = model.Reason(rule).String()
	}
	return rules[rule][0], reason, rules[rule][1]
}
