package limits

import "time"

// Each room that takes time from a request's deadline takes it through this file. A request has two moments: the told
// deadline (sched.Request.Due), which its frontend asked for and the backend's budgets count to, and the aim
// (sched.Request.Deadline), at which its batch is planned to end. Time is taken in this order:
//
//	the caller's deadline
//	  − ReturnMargin     frontend  the output's way back, and waking the caller             → the told deadline
//	  − OverrunMargin    engine    batches end later than planned                           → the aim
//	  − ℓ(n+1)           sched     the batch with one more request
//	  − d_ctrl           sched     the order's way to the backend, at most DelaysMost
//	  − (n+1)·d_data     sched     the inputs' way to the backend, at most DelaysMost       → its frontrun
//	  − the model's haste sched    finding a GPU in time, at most HasteMost                 → it is ripe
//
// Until then, other requests may join its batch. A backend abandons reads that take longer than OverdueAfter, so that one
// frontend takes no time from the rows of others. No time is taken twice: d_ctrl, d_data and ReturnMargin cover three
// successive ways, and the overrun covers only what plans with them missed (Lateness). Three values give time back to a
// request that is already late: StartGrace, Usual and AnswerGrace.

// span is a duration in ns, in the caller's type.
type span interface{ ~int64 }

// Times that a frontend takes.
const (
	ReturnLeast = 200 * time.Microsecond
	returnMost  = 5 * time.Millisecond
	returnShare = 10 // at most this fraction of the budget: 1/10
)

// ReturnTime returns the expected time of an output's way back, if a round trip takes trip at p99. It uses the whole
// p99, since a stall lies in one direction.
func ReturnTime[D span](trip D) D { return min(max(D(ReturnLeast), trip), D(returnMost)) }

// ReturnMargin returns how long before its caller's deadline a request must be answered.
func ReturnMargin[D span](back, budget D) D { return min(back, budget/returnShare) }

// Times that an engine takes.
const (
	// OverrunLeast covers late wake-ups of a host: requests that are dropped because of one never reach a
	// measurement.
	OverrunLeast = 500 * time.Microsecond
	overrunMost  = time.Second
	overrunShare = 4 // at most this fraction of the budget: 1/4
)

// Overrun returns the expected overrun of batches whose p99 overrun is given. least is OverrunLeast on hosts with
// late wake-ups.
func Overrun[D span](p99, least D) D { return min(max(p99, least), D(overrunMost)) }

// OverrunMargin returns how long before the told deadline a request's batch is planned to end.
func OverrunMargin[D span](overrun, budget D) D { return max(0, min(overrun, budget/overrunShare)) }

// Lateness returns the overrun sample of a batch that ended late after its plan. inherited is the part caused by the
// previous batch on the GPU. sched corrects its plans for that part when it learns of it, so it must not count again
// for every batch already sent behind the late one. It counts up to the expected overrun: if every batch is a little
// late, the next one is late, too, before sched learns of it.
func Lateness[D span](late, inherited, expected D) D { return late - max(0, inherited-expected) }

// Limits of the measured network delays that sched plans with, so that one slow backend does not stop batching for
// all.
const (
	ctrlMost   = 5 * time.Millisecond
	dataMost   = time.Millisecond
	delayShare = 4 // each at most this fraction of an SLO: 1/4
)

// DelaysMost returns the largest d_ctrl, and d_data per input, for a model with this SLO and batches of at most
// batchMax.
func DelaysMost[D span](slo D, batchMax int) (ctrl, data D) {
	most := slo / delayShare
	return min(D(ctrlMost), most), min(D(dataMost), most/D(max(1, batchMax)))
}

// HasteMost returns the largest time that sched reserves for finding a GPU. It includes n times the slope of the
// usual batch.
func HasteMost[D span](slo D) D { return slo * 15 / 100 }

// How much of a batch's longest budget its reads may take before the frontend is suspect and its rows are abandoned.
const (
	OverdueLeast = 5 * time.Millisecond // shorter reads are never overdue
	overdueShare = 8                    // this fraction of the budget: 1/8
)

// OverdueAfter returns the time after which a batch's reads are overdue, for its longest budget.
func OverdueAfter[D span](budget D) D { return max(D(OverdueLeast), budget/overdueShare) }

// Times that a late request gets back.
const (
	// StartGrace is how long after a batch's latest start its backend still waits for rows that are being read.
	StartGrace = 2 * time.Millisecond
	// AnswerGrace is the default time that a frontend waits for an output after the caller's deadline.
	AnswerGrace = 20 * time.Millisecond
	usualShare  = 8
)

// Usual returns the usual time of a batch: ℓ(b) is a high percentile. A backend starts a batch that a scheduler or a
// timer delayed if it usually still ends in time.
func Usual[D span](l D) D { return l - l/usualShare }
