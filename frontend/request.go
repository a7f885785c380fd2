package frontend

import "time"

// Request is one inference. Model and Input must be set.
type Request struct {
	Model    string
	Version  string // empty: the newest ready version; a family has none
	Newest   bool   // Version is only where the request starts: if that version is replaced, the newest takes over, as if it were empty
	Input    *Buffer
	Priority uint8 // under overload, higher priorities are kept longer
	// AccuracyFloor is the least accuracy, 0…1, of an acceptable answer; 0: any. A floor that no served variant
	// reaches is rejected at once; the error names the best accuracy.
	AccuracyFloor float64
	// Prepare, if set, fills the input while the request is on its way. The scheduler learns when the input is expected,
	// and takes the request into no batch before that. If Prepare takes longer and a backend reads too early, the read is
	// refused and the request is resubmitted after Prepare. If Prepare returns earlier, the scheduler learns that at once.
	// An error of Prepare ends the request with ErrFailed. Prepare runs on the caller's goroutine and cannot be stopped:
	// Do, DoAll and DoWhole return after it, even if the deadline has passed or the context has ended.
	Prepare func(input []byte) error
	// PrepareTime is how long Prepare is expected to take. 0: the second longest of the model's latest 32 Prepare calls,
	// at most half of the budget; until the first call has returned, requests are sent after their own. A time that leaves
	// the model too little of the budget ends the request with ErrDropped. A negative time, or a time without Prepare, is
	// ErrInvalid.
	PrepareTime time.Duration
	// Sequence identifies the sequence of which the request is a step, for a model that keeps sequences.
	Sequence Sequence
	// Output, if set and large enough, receives the output; the caller must not touch it until the request has ended.
	Output []byte
	// Parts are the model's inputs one by one, instead of Input; some may be outputs held by a backend. Such a
	// request has no Prepare, and all tensors of its model must have one fixed size.
	Parts []Part
	// Hold asks backends to hold outputs, with Parts: one bit for each of the first 32. Result.Held reports which of
	// them the backend holds.
	Hold uint32

	step     bool // Input includes the tensors of the sequence
	composed bool // Input begins with a table of Parts
}

// Result is the output of a request. Release returns its memory; Data must not be used afterwards.
type Result struct {
	Data      []byte        // tensors in the order of the model's outputs, without the batch dimension
	Exec      time.Duration // GPU time of the batch
	Elapsed   time.Duration // from the call to the output's arrival
	Slack     time.Duration // from the output's arrival to the deadline; negative: it was late, but within Grace
	Resubmits int           // times that the request was resubmitted
	Stages    Stages        // the parts of Elapsed
	// Model and Version name the model that answered: the requested one, or a variant of the family. Accuracy is its
	// stated accuracy, 0…1; 0: unknown.
	Model    string
	Version  string
	Accuracy float64
	// Held are the outputs held by the backend, by output; nil: Data has all. Otherwise Data has the others, one
	// after another.
	Held   []*Held
	model  *Model
	client *Client
	store  *[]byte
}

// Release makes the memory reusable; without it the garbage collector frees the memory. A second Release of the same
// variable does nothing; a copy of a Result must not be released as well. Release also releases held outputs, which
// otherwise stay until their lease ends.
func (r *Result) Release() {
	r.ReleaseHeld()
	if r.store != nil {
		r.client.results.putMemory(r.store)
		r.store, r.Data = nil, nil
	}
}
