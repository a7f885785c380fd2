package sched

import "math/bits"

// OutlookMax is the largest number of GPUs in an Outlook.
const OutlookMax = 16

// Outlook says when the next GPUs of a sub-cluster become free. Ranker → Partition, for services with several homes:
// they choose among their sub-clusters by it. An old one costs accuracy, not safety, since batches are formed when a
// GPU is granted.
type Outlook struct {
	SubCluster uint32
	N          int              // number of valid entries of Free
	Spare      int              // GPUs that only run spare work, which ends soon
	Free       [OutlookMax]Time // when they become free, ascending; 0: now
}

// Outlook returns when the next GPUs become free, without those that a Partition is deciding on.
func (r *Ranker) Outlook() Outlook {
	o := Outlook{SubCluster: r.number, N: min(r.idle.n, OutlookMax), Spare: max(0, r.unused()-r.idle.n)}

	// With this many idle GPUs the busy ones do not matter.
	if o.N < OutlookMax && r.busy.slot != nil {
		r.busy.soonest(r.gpus, &o)
	}

	return o
}

// addFree enters one more GPU; without room it replaces the latest.
func (o *Outlook) addFree(free Time) {
	i := o.N
	if i == OutlookMax {
		if i--; o.Free[i] <= free {
			return
		}
	} else {
		o.N++
	}

	for ; i > 0 && o.Free[i-1] > free; i-- {
		o.Free[i] = o.Free[i-1]
	}
	o.Free[i] = free
}

// takeFree removes the GPU that becomes free last before some time, or else the first one.
func (o *Outlook) takeFree(before Time) {
	i := 0
	for i+1 < o.N && o.Free[i+1] <= before {
		i++
	}

	copy(o.Free[i:o.N-1], o.Free[i+1:o.N])
	o.N--
}

// soonest enters the busy GPUs that become free first.
func (a *busyGPUs) soonest(gpus []gpu, o *Outlook) {
	start := int32(a.cur & busyMask)
	for k := int32(0); k <= int32(len(a.word)); k++ {
		w := (start>>6 + k) & int32(len(a.word)-1)
		for set := a.word[w]; set != 0; set &= set - 1 {
			s := w<<6 + int32(bits.TrailingZeros64(set))
			if k == 0 && s < start || k == int32(len(a.word)) && s >= start {
				continue // of the first word one half comes first, the other last
			}

			// A chain is sorted by time, except for GPUs that have changed since.
			for id, n := a.slot[s], 0; id != 0 && n < 2*OutlookMax; id, n = gpus[id-1].next, n+1 {
				if g := &gpus[id-1]; g.state == busy {
					o.addFree(g.freeAt)
				}
			}

			// Slots are also sorted by time.
			if o.N == OutlookMax {
				return
			}
		}
	}
}

// CommittedTime returns the GPU time within a span from now on that is already committed, on the n GPUs from place from on, and
// whether there are more: a driver that shares the Ranker asks for a few at a time.
func (r *Ranker) CommittedTime(now Time, within Duration, from, n int) (sum Duration, more bool) {
	end := min(from+n, len(r.gpus))
	for id := from; id < end; id++ {
		if g := &r.gpus[id]; g.state != absent {
			sum += min(max(0, g.freeAt.Sub(now)), within)
		}
	}

	return sum, end < len(r.gpus)
}
