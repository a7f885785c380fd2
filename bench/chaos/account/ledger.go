package account

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Grace is how long after its deadline a request may end.
const Grace = 20 * time.Millisecond

// request is one request of the ledger.
type request struct {
	sent, until, ended int64
	caller             int
	size               int
	times              int  // number of times that it ended
	good, wrong        bool // right output in time; output of another input
	reason             string
}

// Ledger holds every request of one experiment. Its methods may be called concurrently.
type Ledger struct {
	mu       sync.Mutex
	requests map[uint64]*request
	unknown  int          // ends of requests that nobody sent
	killed   map[int]bool // callers whose open requests ended with them
	excused  map[int]bool // callers that were paused: their late ends do not count
	noise    map[int]int64
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{requests: map[uint64]*request{}, killed: map[int]bool{}, excused: map[int]bool{}, noise: map[int]int64{}}
}

// Note adds one record of a caller.
func (l *Ledger) Note(caller int, r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()

	switch r.Kind {
	case Sent:
		if l.requests[r.ID] != nil {
			l.unknown++ // two requests with one id cannot be told apart
			return
		}
		l.requests[r.ID] = &request{sent: r.At, until: r.Until, caller: caller, size: r.Size}
	case Output, Ended:
		l.noteEnd(r)
	case Noise:
		l.noise[caller] = max(l.noise[caller], r.Until)
	}
}

func (l *Ledger) noteEnd(r Record) {
	q := l.requests[r.ID]
	if q == nil {
		l.unknown++
		return
	}

	q.times++
	q.ended = r.At
	if r.Kind == Ended {
		q.reason = string(r.Text)
		return
	}

	// A right output after deadline and grace is neither a good nor a wrong answer.
	q.wrong = !bytes.Equal(r.Text, Expected(r.ID, q.size))
	q.good = !q.wrong && q.ended <= q.until+int64(Grace)
	q.reason = "late"
}

// Killed notes that a caller was killed: its open requests ended with it.
func (l *Ledger) Killed(caller int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed[caller] = true
}

// Excuse notes that a caller was paused: from now on, late ends of its requests do not count.
func (l *Ledger) Excuse(caller int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.excused[caller] = true
}

// Sum is the result of a ledger.
type Sum struct {
	Sent        int
	Good        int
	Wrong       int // ended with the output of another input
	Unaccounted int // never ended although the caller lived, ended twice, or were never sent
	WithCaller  int // open when their caller was killed
	Reasons     map[string]int
	LateMax     time.Duration // longest delay of an end after its deadline
	NoiseMax    time.Duration // longest delay of a timer in a caller's process
}

// Sum sums all requests. Call it after every caller has left or was killed.
func (l *Ledger) Sum() Sum {
	l.mu.Lock()
	defer l.mu.Unlock()

	s := Sum{Sent: len(l.requests), Unaccounted: l.unknown, Reasons: map[string]int{}}
	// A killed caller could not record the ends of its requests; every other request must end exactly once.
	for _, q := range l.requests {
		switch {
		case q.times == 0 && l.killed[q.caller]:
			s.WithCaller++
			continue
		case q.times != 1:
			s.Unaccounted++
			continue
		}

		if !l.excused[q.caller] {
			s.LateMax = max(s.LateMax, time.Duration(q.ended-q.until))
		}
		switch {
		case q.wrong:
			s.Wrong++
		case q.good:
			s.Good++
		default:
			s.Reasons[q.reason]++
		}
	}

	for caller, n := range l.noise {
		if !l.excused[caller] {
			s.NoiseMax = max(s.NoiseMax, time.Duration(n))
		}
	}
	return s
}

// Share is the part of requests that ended well.
type Share struct{ Good, Sent int }

// Percent returns the percentage of requests that ended well; 0 if none were sent.
func (s Share) Percent() float64 {
	if s.Sent == 0 {
		return 0
	}
	return 100 * float64(s.Good) / float64(s.Sent)
}

func (s Share) String() string {
	return fmt.Sprintf("%d of %d good (%.1f %%)", s.Good, s.Sent, s.Percent())
}

// Between counts the requests that one caller sent between two times. It omits requests that ended with their killed
// caller.
func (l *Ledger) Between(caller int, from, to int64) Share {
	l.mu.Lock()
	defer l.mu.Unlock()

	var s Share
	for _, q := range l.requests {
		if q.caller != caller || q.sent < from || q.sent >= to || q.times == 0 && l.killed[caller] {
			continue
		}
		s.Sent++
		if q.good {
			s.Good++
		}
	}
	return s
}

// Reasons counts the ends of the requests without a right output that a caller sent between two times.
func (l *Ledger) Reasons(caller int, from, to int64) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()

	all := map[string]int{}
	for _, q := range l.requests {
		if q.caller == caller && q.sent >= from && q.sent < to && !q.good && q.times > 0 {
			all[q.reason]++
		}
	}
	return all
}

// runOfGood is the number of consecutive good requests that count as recovered goodput.
const runOfGood = 10

// Recovery returns how long after a time a caller's goodput recovered: until it sent the first of ten consecutive
// requests that all ended well. ok is false if there were no ten.
func (l *Ledger) Recovery(caller int, from int64) (d time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	var later []*request
	for _, q := range l.requests {
		if q.caller == caller && q.sent >= from {
			later = append(later, q)
		}
	}

	// Sort by the time of sending: the map has no order.
	slices.SortFunc(later, func(a, b *request) int { return int(a.sent - b.sent) })

	run := 0
	for i, q := range later {
		if run++; !q.good {
			run = 0
		}
		if run == runOfGood {
			first := later[i-runOfGood+1]
			if i == runOfGood-1 {
				return 0, true // goodput never dropped
			}
			return time.Duration(first.sent - from), true
		}
	}
	return 0, false
}
