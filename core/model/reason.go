package model

// Reason says why a request ended without an output.
type Reason uint8

// The reasons. Their names appear in metrics, on the wire and in errors.
const (
	ReasonNone          Reason = iota
	DeadlineCannotBeMet        // dropped: no batch can meet it any more
	QueueFull                  // rejected: the model's queue is at its limit
	UnknownModel               // rejected: no such model, or it was unloaded
	DeadlinePast               // rejected: the deadline had passed on arrival
	Canceled                   // the caller gave up
	NoBackend                  // unavailable: no GPU serves this model
	BackendLost                // unavailable: the backend died with the batch and no time was left to retry
	ExecutionFailed            // the model failed on this batch
	InputUnavailable           // the input could not be fetched from the frontend
	FloorTooHigh               // rejected: no served variant is accurate enough
	ReasonCount
)

var reasonNames = [ReasonCount]string{
	"none", "deadline_cannot_be_met", "queue_full", "unknown_model", "deadline_past", "canceled",
	"no_backend", "backend_lost", "execution_failed", "input_unavailable", "accuracy_floor",
}

// String returns the reason's name in snake case, as metrics label it.
func (r Reason) String() string {
	if r < ReasonCount {
		return reasonNames[r]
	}
	return "invalid"
}
