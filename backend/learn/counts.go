package learn

// Counts are a learner's counts since its start.
type Counts struct {
	Sampled, Labelled, Dropped int // inputs: kept, labelled, and dropped after waiting too long
	Served                     int // labelled ones that the serving version had answered
	Steps                      int // of training
	Stopped                    int // how often a training step stopped between two layers
	Judged, Published          int // candidates
	Recalled, Reverted         int // earlier versions published again: after a drift, and because they proved better than their successor
	Worse                      int // discarded candidates that were worse than the serving weights
	NotFinite                  int // discarded candidates with a loss or weights that are not finite
	Unpublished                int // better candidates that could not be published
	Looks, Drifts              int
	TeacherFailed              int // labelling steps without labels
	Answered                   Answered
}

// Answered counts the samples that a learner's weights have answered, by purpose.
type Answered struct {
	Watched           int // for the alarm between looks
	Reference, Window int // for looks
	Serving           int // by the serving weights, to judge others
	Candidates        int
	Previous          int // by the version before
	Known             int // by known versions, after a drift
	First             int // samples of the first data, by candidates
}
