package gateway

import (
	"strconv"
	"strings"
	"time"
)

// takeParameter applies a request parameter. Parameters of unsupported extensions are refused only where ignoring
// them would give a wrong answer.
func (in *inference) takeParameter(name string, value int64) *fault {
	switch name {
	case "timeout":
		if value < 0 || value > timeoutMax.Microseconds() {
			return invalidFault("parameter timeout: %d µs: must be within 0 (none) and %d", value, timeoutMax.Microseconds())
		}
		in.timeout = time.Duration(value) * time.Microsecond
	case "priority":
		if value < 0 {
			return invalidFault("parameter priority: %d: must be 0 or more (1 is the highest, 0 leaves it open)", value)
		}
		if value > 0 {
			// The protocol's highest priority is 1, the scheduler's is the largest number.
			in.priority = uint8(priorityMax + 1 - min(value, priorityMax)) // priorities below 255 count as 255
		}
	}
	return nil
}

// takeSequence applies the parameters that make a call a step of a sequence; value is the parameter's JSON text.
func (in *inference) takeSequence(name, value string) *fault {
	s := &in.sequence
	flag := &s.Start
	switch name {
	case "sequence_id":
		// The later of two ids applies, whichever form it has.
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			s.ID, s.Name = n, ""
			return nil
		}
		text, err := strconv.Unquote(value)
		if err != nil || value[0] != '"' {
			return invalidFault("parameter sequence_id: %.40s: must be a whole number from 0 to 2^64-1, or a text", value)
		}
		s.ID, s.Name = 0, strings.Clone(text) // another message uses the memory after the call
		return nil
	case "sequence_end":
		flag = &s.End
	}

	switch value {
	case "true":
		*flag = true
	case "false":
		*flag = false
	default:
		return invalidFault("parameter %s: %.40s: must be true or false", name, value)
	}
	return nil
}

// versionAsked returns the version that a call's requests name. A sequence stays with the version that it began with,
// unless its steps name one.
func (in *inference) versionAsked() string {
	if in.model.Sequence != nil {
		return in.wanted
	}
	return in.model.RequestVersion()
}

// checkSequence checks a call's sequence parameters against its model.
func (in *inference) checkSequence() *fault {
	switch {
	case in.model.Sequence == nil && in.sequence.IsZero():
		return nil
	case in.model.Sequence == nil:
		return invalidFault("model %q: sequence %.40s: the model keeps no sequences (no sequence_batching in its configuration)", in.model.Name, in.sequence.String())
	case in.sequence.ID == 0 && in.sequence.Name == "":
		return invalidFault("inference request to model '%s' must specify a non-zero or non-empty correlation ID", in.model.Name)
	case in.rows != 1:
		return invalidFault("inference request to model '%s' must specify batch-size 1 due to requirements of sequence batcher", in.model.Name)
	}
	return nil
}

// setClasses sets the number of classes requested from an output.
func (o *output) setClasses(n int64) *fault {
	if n < 0 || n > classesMax {
		return invalidFault("output %q: parameter classification: %d: must be within 0 and %d", o.name, n, classesMax)
	}
	o.classes = int(n)
	return nil
}
