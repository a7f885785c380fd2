package frontend

import "time"

// Request is one inference. Model and Input must be set.
type Request struct {
	Model    string
	Version  string // empty: the newest that is ready; a family has none
	Newest   bool   // Version is where the request begins: the newest takes it over where that one goes, as where it is empty
	Input    *Buffer
	Priority uint8 // higher is kept longer when not all can be served
	// AccuracyFloor is the least accuracy, 0…1, that is an answer; 0: any. A request that nothing served reaches is
	// rejected at once, with the best that there is.
	AccuracyFloor float64
	// Prepare, if set, fills the input while the request already queues. A backend that asks for
	// the input before Prepare has returned is refused, and the request is submitted again once it
	// has. An error ends the request with ErrFailed.
	Prepare func(input []byte) error
	// Sequence says of which sequence the request is a step, of a model that keeps sequences.
	Sequence Sequence
	// Output, if set and large enough, is where the output is copied to; it must not be touched
	// until the request has ended.
	Output []byte
	// Parts are the model's inputs, one by one, in place of Input: some may be outputs that a backend holds. Such a request has
	// no Prepare, and all tensors of its model are of one fixed size.
	Parts []Part
	// Hold says which outputs backends are asked to hold, with Parts: a bit for each, the first 32. Which of them are held is
	// the backend's choice: Result.Held says.
	Hold uint32

	step     bool // Input has what its sequence adds
	composed bool // Input begins with a table of Parts
}

// Result is the output of a request. Release gives its memory back; Data must not be used after.
type Result struct {
	Data      []byte        // tensors in the order of the model's outputs, without the batch dimension
	Exec      time.Duration // that the batch took on the GPU
	Elapsed   time.Duration // from the call to the output's arrival
	Slack     time.Duration // from the output's arrival to the deadline; negative: it came late, within Grace
	Resubmits int           // times that the request was sent again
	Stages    Stages        // where Elapsed went
	// Model and Version say which model answered: the one that was asked for, or a variant of the family. Accuracy is
	// what is claimed of it, 0…1; 0: nothing.
	Model    string
	Version  string
	Accuracy float64
	// Held are the outputs that the backend holds, by output; nil: Data has all. Data has the others, one after another.
	Held   []*Held
	model  *Model
	client *Client
	store  *[]byte
}

// Release is for speed: without it the collector frees the memory. A second one on the same variable
// does nothing; a copy of a Result must not be released as well. Outputs that are held are released as well: without it their
// lease has to end first.
func (r *Result) Release() {
	r.ReleaseHeld()
	if r.store != nil {
		r.client.results.putMemory(r.store)
		r.store, r.Data = nil, nil
	}
}
