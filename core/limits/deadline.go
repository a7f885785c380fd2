package limits

import "time"

// This file is the ledger of a request's deadline: every room that takes a share of it takes it here. A request has
// two moments. The told deadline (sched.Request.Due) is the one that its frontend sends; the budgets of backends
// count to it. The aim (sched.Request.Deadline) is the moment at which the plan ends the request's batch. The shares,
// in order:
//
//	the caller's deadline
//	  − ReturnMargin     frontend  the output's way back, and the caller's waking           → the told deadline
//	  − OverrunMargin    engine    batches end later than planned                           → the aim
//	  − ℓ(n+1)           sched     the batch with one request more
//	  − d_ctrl           sched     the order's way to the backend, at most DelaysMost
//	  − (n+1)·d_data     sched     its inputs' way there, at most DelaysMost                → its frontrun
//	  − the model's haste sched    a GPU has to be found in time, at most HasteMost         → it is ripe
//
// The time until the request is ripe is for other requests to join its batch. A backend gives up reads that take
// longer than OverdueAfter, so that a slow frontend takes no time from other frontends' rows.
//
// No time is taken twice: d_ctrl, d_data and ReturnMargin cover three successive trips, and the overrun covers what a
// plan that includes them still misses (Lateness). Three rooms give time back to a request that is already late: see
// StartGrace, Usual and AnswerGrace.

// span is a duration in ns, in the caller's type.
type span interface{ ~int64 }

// The frontend's share.
const (
	ReturnLeast = 200 * time.Microsecond
	returnMost  = 5 * time.Millisecond
	returnShare = 10 // at most 1/returnShare of the budget
)

// ReturnTime is the time to allow for an output's way back, given the p99 of a round trip. It is the p99 of both
// directions, since a stall lies in one of them.
func ReturnTime[D span](trip D) D { return min(max(D(ReturnLeast), trip), D(returnMost)) }

// ReturnMargin is how much earlier than the caller's deadline a request with this budget should be answered.
func ReturnMargin[D span](back, budget D) D { return min(back, budget/returnShare) }

// The engine's share.
const (
	// OverrunLeast covers a host's late wake-ups. It needs a minimum because a request that is dropped for one is
	// never measured.
	OverrunLeast = 500 * time.Microsecond
	overrunMost  = time.Second
	overrunShare = 4 // at most 1/overrunShare of the budget
)

// Overrun is the expected lateness of batches, given its measured p99; least is OverrunLeast on hosts with late
// wake-ups.
func Overrun[D span](p99, least D) D { return min(max(p99, least), D(overrunMost)) }

// OverrunMargin is how much earlier than the told deadline the plan ends a request's batch.
func OverrunMargin[D span](overrun, budget D) D { return max(0, min(overrun, budget/overrunShare)) }

// Lateness is the part of a batch's lateness that counts as overrun. inherited is the lateness with which the
// previous batch left the GPU. sched corrects its plans for that once it learns of it, so one stall must not count
// again for every batch that was already sent behind it. The part of inherited that is expected anyway does count: if
// every batch is a little late, the next one is too before sched learns of it.
func Lateness[D span](late, inherited, expected D) D { return late - max(0, inherited-expected) }

// The network's shares, taken by sched as the engine measures them. Their limits keep one slow backend from stopping
// all batching.
const (
	ctrlMost   = 5 * time.Millisecond
	dataMost   = time.Millisecond
	delayShare = 4 // each at most 1/delayShare of an SLO
)

// DelaysMost returns the limits of d_ctrl, and of d_data per input, for a model with this SLO and batches of at most
// batchMax.
func DelaysMost[D span](slo D, batchMax int) (ctrl, data D) {
	most := slo / delayShare
	return min(D(ctrlMost), most), min(D(dataMost), most/D(max(1, batchMax)))
}

// HasteMost is the most time that sched takes for finding a GPU; the n slopes of the usual batch are part of it.
func HasteMost[D span](slo D) D { return slo * 15 / 100 }

// The time that reads may take of a batch's longest budget before the backend suspects their frontend and gives up
// the rows.
const (
	OverdueLeast = 5 * time.Millisecond // shorter reads are not overdue
	overdueShare = 8                    // 1/overdueShare of the budget
)

// OverdueAfter is the least time that a batch with this budget allows its reads.
func OverdueAfter[D span](budget D) D { return max(D(OverdueLeast), budget/overdueShare) }

// Time given back to late requests.
const (
	// StartGrace is how long after a batch's latest start its backend still waits for rows that are being read.
	StartGrace = 2 * time.Millisecond
	// AnswerGrace is how long after the caller's deadline the frontend waits for an output, by default.
	AnswerGrace = 20 * time.Millisecond
	usualShare  = 8
)

// Usual is the usual duration of a batch. ℓ(b) is a high percentile, so a backend starts a batch that is late by
// scheduling or timer jitter if it usually ends in time.
func Usual[D span](l D) D { return l - l/usualShare }
