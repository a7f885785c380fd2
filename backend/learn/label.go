package learn

import (
	"fmt"
	"time"
)

const (
	labelBatch = 16 // inputs of a labelling step
	labelBrief = 4  // of a brief step
	// After a failure the teacher is asked again after teachPauseLeast; each further failure doubles the pause.
	teachPauseLeast = time.Second
	teachPauseMost  = time.Minute
)

// labelled returns the number of inputs of a labelling step.
func (l *Learner) labelled() int {
	if l.options.Brief {
		return labelBrief
	}
	return labelBatch
}

// labels reports whether the next step asks the teacher.
func (l *Learner) labels() bool {
	return len(l.waiting) >= l.labelled() && l.now >= l.teachFrom
}

// label asks the teacher for the classes of the oldest waiting inputs. An error is the teacher's and only delays the
// next attempt; training continues with labelled samples.
func (l *Learner) label() error {
	// Remove the inputs from the queue in any case, so that inputs on which the teacher fails do not block it.
	n := l.labelled()
	list := l.waiting[:n]
	l.waiting = l.waiting[n:]
	var images []byte
	for _, s := range list {
		images = append(images, s.Input...)
	}

	// An invalid answer counts as a failure.
	classes, err := l.options.Teach(images, len(list))
	if err == nil && len(classes) != len(list) {
		err = fmt.Errorf("%d classes for %d inputs", len(classes), len(list))
	}

	// A teacher that has failed usually fails again at once, so double the pause.
	if err != nil {
		l.counts.Dropped += len(list)
		l.counts.TeacherFailed++
		l.teachPause = min(max(2*l.teachPause, teachPauseLeast), teachPauseMost)
		l.teachFrom = l.now + l.teachPause
		return fmt.Errorf("teacher of %s: %w", l.options.Net.Name, err)
	}

	// One answer resets the pause.
	l.teachPause = 0
	for i, class := range classes {
		s := list[i]
		s.Class = class
		s.Served.Sure, s.scores = probability(s.scores, class), nil
		if err := l.options.checkSample(s); err != nil {
			l.counts.Dropped++
			continue // the teacher has more classes than the student: ignore such an input
		}
		l.addLabelled(s)
	}
	return nil
}
