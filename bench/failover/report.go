package failover

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"downbeat.dev/bench/median"
)

// Report is the cost of the kills. Times are in milliseconds.
type Report struct {
	Experiment string  `json:"experiment"`
	Kills      int     `json:"kills"`
	Rate       float64 `json:"rate"` // offered, requests/s
	Sent       int     `json:"sent"`
	Bad        int     `json:"bad"`  // requests with the SLO without an output in time
	Lost       int     `json:"lost"` // requests with the longer budget without an output in time

	Reasons map[string]int `json:"reasons"` // of the bad and lost requests

	// LostRequests has the details of each lost request.
	LostRequests []LostRequest `json:"lost_requests,omitempty"`

	// Leads is the time from a kill until a standby logged that it leads.
	LeadsP50 float64 `json:"leads_p50_ms"`
	LeadsP99 float64 `json:"leads_p99_ms"`
	// Recover is the time from a kill until the last bad request before a quarter of a second without any was sent;
	// 0: no request was bad.
	RecoverP50 float64 `json:"recover_p50_ms"`
	RecoverP99 float64 `json:"recover_p99_ms"`
	// RecoverAll has a value for each kill.
	RecoverAll []float64 `json:"recover_ms"`
	// Gap is the longest time without a good answer within a second after a kill; GapQuiet is the same for a second
	// without a kill.
	GapP50      float64 `json:"gap_p50_ms"`
	GapP99      float64 `json:"gap_p99_ms"`
	GapQuietP50 float64 `json:"gap_quiet_p50_ms"`
	GapQuietP99 float64 `json:"gap_quiet_p99_ms"`
}

// LostRequest is a request with the longer budget that got no output in time. Times are in milliseconds since the
// load's beginning, unless stated otherwise.
type LostRequest struct {
	Sent      float64  `json:"sent_ms"`
	AfterKill float64  `json:"after_kill_ms"` // from the previous kill until it was sent; 0: none before
	ToKill    float64  `json:"to_kill_ms"`    // until the next kill; 0: none after
	Took      float64  `json:"took_ms"`
	Why       string   `json:"why"`
	Again     int      `json:"again"` // times that the client submitted it again
	Said      []string `json:"said"`  // log lines of the processes while it was under way

	at, ended time.Duration
}

// lostRequest describes a lost request.
func lostRequest(q request, kills []kill) LostRequest {
	l := LostRequest{Sent: roundedMilliseconds(q.at), Took: roundedMilliseconds(q.ended - q.at), Why: q.why, Again: q.again, at: q.at, ended: q.ended}

	// Kills are in order: find the last one before the request and the first one after it.
	for _, k := range kills {
		if k.at <= q.at {
			l.AfterKill = roundedMilliseconds(q.at - k.at)
		} else if l.ToKill == 0 {
			l.ToKill = roundedMilliseconds(k.at - q.at)
		}
	}
	return l
}

// around is the examined time after a kill, and before it.
const around = time.Second

func newReport(c Config, kills []kill, sent []request) *Report {
	r := &Report{Experiment: "failover", Kills: len(kills), Rate: c.Share * c.clusterCapacity(), Sent: len(sent), Reasons: map[string]int{}}

	var ends []time.Duration // of good answers
	for _, q := range sent {
		if !q.good {
			r.Reasons[q.why]++
		}

		switch {
		case q.good:
			ends = append(ends, q.ended)
		case q.outlast:
			r.Lost++
			r.LostRequests = append(r.LostRequests, lostRequest(q, kills))
		default:
			r.Bad++
		}
	}
	slices.Sort(ends)
	slices.SortFunc(sent, func(a, b request) int { return cmp.Compare(a.at, b.at) })

	var led, recovered, gaps, quiet []float64
	for i := range kills {
		// A bad request shortly before the next kill may be due to that kill.
		kill, until := kills[i].at, time.Duration(1<<62)
		if i+1 < len(kills) {
			until = kills[i+1].at - c.SLO // later ones may be due to the next kill
		}

		led = append(led, roundedMilliseconds(kills[i].led))
		recovered = append(recovered, lastBad(sent, kill, until))
		gaps = append(gaps, longestGap(ends, kill, kill+around))

		// A quiet second must not overlap the second after the previous kill.
		if before := kill - around; i == 0 || before > kills[i-1].at+around {
			quiet = append(quiet, longestGap(ends, before, kill))
		}
	}

	r.LeadsP50, r.LeadsP99 = median.Percentile(led, 50), median.Percentile(led, 99)
	r.RecoverAll = recovered
	r.RecoverP50, r.RecoverP99 = median.Percentile(recovered, 50), median.Percentile(recovered, 99)
	r.GapP50, r.GapP99 = median.Percentile(gaps, 50), median.Percentile(gaps, 99)
	r.GapQuietP50, r.GapQuietP99 = median.Percentile(quiet, 50), median.Percentile(quiet, 99)
	return r
}

// calm is the time without bad requests after which a kill's consequences are over.
const calm = 250 * time.Millisecond

// lastBad returns how long after a kill the last request was sent that failed because of it.
func lastBad(sent []request, kill, until time.Duration) float64 {
	// Bad requests count as the kill's as long as they follow each other within calm.
	last := kill
	for _, q := range sent {
		if !q.good && !q.outlast && q.at > kill && q.at < until && q.at <= last+calm {
			last = q.at
		}
	}
	return roundedMilliseconds(last - kill)
}

// longestGap returns the longest time without a good answer that overlaps the time from from to to.
func longestGap(ends []time.Duration, from, to time.Duration) float64 {
	i, _ := slices.BinarySearch(ends, from)

	longest := time.Duration(0)
	for i = max(1, i); i < len(ends) && ends[i-1] < to; i++ {
		longest = max(longest, ends[i]-ends[i-1])
	}
	return roundedMilliseconds(longest)
}

func roundedMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "kills\t%d\n", r.Kills)
	fmt.Fprintf(t, "sent\t%d\tat %.0f a second\n", r.Sent, r.Rate)
	fmt.Fprintf(t, "lost\t%d\tof those whose budget outlasts a change of leader\n", r.Lost)
	fmt.Fprintf(t, "bad\t%d\tof those with the SLO\n", r.Bad)
	for _, q := range r.LostRequests {
		fmt.Fprintf(t, "  at %.1f ms\t%s after %.1f ms\tsubmitted %d times more, %.1f ms after a kill, %.1f before the next\n", q.Sent, q.Why, q.Took, q.Again, q.AfterKill, q.ToKill)
	}

	for _, why := range slices.Sorted(maps.Keys(r.Reasons)) {
		fmt.Fprintf(t, "  %s\t%d\n", why, r.Reasons[why])
	}
	fmt.Fprintf(t, "standby leads\t%.1f ms p50\t%.1f ms p99\n", r.LeadsP50, r.LeadsP99)
	fmt.Fprintf(t, "goodput back\t%.1f ms p50\t%.1f ms p99\n", r.RecoverP50, r.RecoverP99)
	fmt.Fprintf(t, "gap in answers\t%.1f ms p50\t%.1f ms p99\n", r.GapP50, r.GapP99)
	fmt.Fprintf(t, "gap without a kill\t%.1f ms p50\t%.1f ms p99\n", r.GapQuietP50, r.GapQuietP99)
	return t.Flush()
}
