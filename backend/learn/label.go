package learn

import (
	"fmt"
	"time"
)

const (
	labelBatch = 16 // inputs of a labelling step
	labelBrief = 4  // of a brief one
	// A teacher that has failed is asked again after teachPauseLeast; each further failure doubles the pause.
	teachPauseLeast = time.Second
	teachPauseMost  = time.Minute
)

// labelled is how many inputs a labelling step labels.
func (l *Learner) labelled() int {
	if l.options.Brief {
		return labelBrief
	}
	return labelBatch
}

// labels tells whether the next step asks the teacher.
func (l *Learner) labels() bool {
	return len(l.waiting) >= l.labelled() && l.now >= l.teachFrom
}

// label asks the teacher for the classes of the inputs that wait longest. An error is the teacher's, and changes nothing but
// when it is asked again: what has labels is learnt meanwhile.
func (l *Learner) label() error {
	// The inputs leave the queue whatever the teacher says: those that it fails on must not block it.
	n := l.labelled()
	list := l.waiting[:n]
	l.waiting = l.waiting[n:]
	var images []byte
	for _, input := range list {
		images = append(images, input...)
	}

	// What is wrong with the answer as a whole is a failure, like none.
	classes, err := l.options.Teach(images, len(list))
	if err == nil && len(classes) != len(list) {
		err = fmt.Errorf("%d classes for %d inputs", len(classes), len(list))
	}

	// It fails again, as a rule, if it is asked at once: the pause doubles.
	if err != nil {
		l.counts.Dropped += len(list)
		l.counts.TeacherFailed++
		l.teachPause = min(max(2*l.teachPause, teachPauseLeast), teachPauseMost)
		l.teachFrom = l.now + l.teachPause
		return fmt.Errorf("teacher of %s: %w", l.options.Net.Name, err)
	}

	// One answer is enough to trust it again.
	l.teachPause = 0
	for i, class := range classes {
		s := Sample{list[i], class}
		if err := l.options.checkSample(s); err != nil {
			l.counts.Dropped++
			continue // a teacher with more classes than the student: such an input teaches nothing
		}
		l.samples.add(s)
		l.counts.Labelled++
	}
	return nil
}
