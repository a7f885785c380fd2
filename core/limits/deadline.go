package limits

import "time"

// This is the ledger of a request's deadline: whoever takes time from one takes it here. A request has two moments that
// count. The told deadline (sched.Request.Due) is what its frontend asked for; the backend's budgets count to it. The aim
// (sched.Request.Deadline) is when its batch is planned to end. In the order in which time is taken:
//
//	the caller's deadline
//	  − ReturnMargin     frontend  the output's way back, and the caller's waking           → the told deadline
//	  − OverrunMargin    engine    batches end later than planned                           → the aim
//	  − ℓ(n+1)           sched     the batch with one request more
//	  − d_ctrl           sched     the order's way to the backend, at most DelaysMost
//	  − (n+1)·d_data     sched     its inputs' way there, at most DelaysMost                → its frontrun
//	  − the model's haste sched    a GPU has to be found in time, at most HasteMost         → it is ripe
//
// A backend gives up the reads that take more than OverdueAfter, so that one frontend takes no time from the rows of others.
// What is left until then is for other requests to join its batch. Nothing is taken twice: d_ctrl, d_data and ReturnMargin
// are three ways that a request takes one after the other; the overrun is of what a plan with them missed (Lateness).
// Three rooms give time back to a request that is late already: see StartGrace, Usual and AnswerGrace.

// span is ns in the type of whoever asks.
type span interface{ ~int64 }

// What a frontend takes.
const (
	ReturnLeast = 200 * time.Microsecond
	returnMost  = 5 * time.Millisecond
	returnShare = 10 // of the budget, one part at most
)

// ReturnTime is the time that an output is taken to need for its way back, where a message there and back takes trip at
// p99: by p99 of both ways, since a stall lies in one of them.
func ReturnTime[D span](trip D) D { return min(max(D(ReturnLeast), trip), D(returnMost)) }

// ReturnMargin is how much earlier than its caller's deadline a request with a budget is to be answered.
func ReturnMargin[D span](back, budget D) D { return min(back, budget/returnShare) }

// What an engine takes.
const (
	// OverrunLeast covers a host's late wake-ups: what is dropped for one is never measured.
	OverrunLeast = 500 * time.Microsecond
	overrunMost  = time.Second
	overrunShare = 4 // of the budget, one part at most
)

// Overrun is how late batches are expected to end, where p99 of them do; least is OverrunLeast where wake-ups are late.
func Overrun[D span](p99, least D) D { return min(max(p99, least), D(overrunMost)) }

// OverrunMargin is how much earlier than told a request's batch is planned to end.
func OverrunMargin[D span](overrun, budget D) D { return max(0, min(overrun, budget/overrunShare)) }

// Lateness is what a batch that ended late after its plan teaches of overruns. inherited is the part that came with its
// GPU, since the batch before ended late: sched corrects its plans for that once it is told, so that one stumble
// must not count again for each batch that had been sent behind it. It counts as far as it is expected anyway: where
// every batch is a little late, so is the next one before sched is told.
func Lateness[D span](late, inherited, expected D) D { return late - max(0, inherited-expected) }

// What sched takes for the network, as the engine measures it: so that a backend in trouble does not stop everyone's
// batching.
const (
	ctrlMost   = 5 * time.Millisecond
	dataMost   = time.Millisecond
	delayShare = 4 // of an SLO, one part at most for each
)

// DelaysMost bounds d_ctrl, and d_data per input, for a model with an SLO and batches of at most batchMax.
func DelaysMost[D span](slo D, batchMax int) (ctrl, data D) {
	most := slo / delayShare
	return min(D(ctrlMost), most), min(D(dataMost), most/D(max(1, batchMax)))
}

// HasteMost is the most that sched takes for finding a GPU in time; the n slopes of the usual batch are a part of it.
func HasteMost[D span](slo D) D { return slo * 15 / 100 }

// What reads may take of a batch's longest budget before their frontend is suspect, and their rows are given up.
const (
	OverdueLeast = 5 * time.Millisecond // reads that take no longer are not overdue
	overdueShare = 8                    // of the budget, one part
)

// OverdueAfter is the least time that a batch with a budget leaves to its reads.
func OverdueAfter[D span](budget D) D { return max(D(OverdueLeast), budget/overdueShare) }

// What a late request is given back.
const (
	// StartGrace is how long beyond a batch's latest start its backend waits for rows that are being read.
	StartGrace = 2 * time.Millisecond
	// AnswerGrace is how long after the caller's deadline its frontend waits for an output, unless it is told otherwise.
	AnswerGrace = 20 * time.Millisecond
	usualShare  = 8
)

// Usual is what a batch takes as a rule: ℓ(b) is a high percentile, and a backend begins a batch that is a scheduler's or
// a timer's jitter late if it usually ends in time.
func Usual[D span](l D) D { return l - l/usualShare }
