package accuracy

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"downbeat.dev/core/sim"
)

// hindsight is a schedule of whole batches on whole devices, made when all arrivals are known, decision 0394. It begins as
// a policy's own schedule. Each step takes some batches out of a second that loses too much, and places their requests
// anew; a step stays if less is lost by it.
type hindsight struct {
	w       *sim.World
	rng     *rand.Rand
	devices [][]batchInTime // by device, in order of time
	kinds   [][]int         // devices by kind
	ways    [][]wayInTime   // by model
	lost    []float64       // by second of arrival: what the answers lose, in answers
	goal    []float64       // by second: what they may lose

	// One step.
	before map[int][]batchInTime // by device that changed
	queues [][]int32             // by model: requests without a place
}

// batchInTime is a batch of a schedule.
type batchInTime struct {
	model, variant int32
	start, end     sim.Time
	requests       []int32
}

// wayInTime is a way to answer requests of a model: a variant on a kind of devices, in a batch of some size.
type wayInTime struct {
	variant, kind, batch int
	exec                 sim.Time
	lost                 float64 // accuracy
	worth                float64 // of an answer, at the prices of the step
}

// newHindsight returns an empty schedule.
func newHindsight(w *sim.World, kinds, seconds int) *hindsight {
	h := &hindsight{w: w, rng: rand.New(rand.NewPCG(1, 2)), devices: make([][]batchInTime, w.GPUs), kinds: make([][]int, kinds),
		lost: make([]float64, seconds), goal: make([]float64, seconds), queues: make([][]int32, len(w.Models)), before: map[int][]batchInTime{}}
	for d := range h.devices {
		k := w.Kind(int32(d))
		h.kinds[k] = append(h.kinds[k], d)
	}
	for f := range w.Models {
		m, ways := &w.Models[f], []wayInTime(nil)
		for v := range m.Variants {
			for k, p := range m.Variants[v].Profiles {
				for b := 1; p != nil && b <= p.Max() && sim.Duration(p.Exec(b)) <= m.SLO; b++ {
					ways = append(ways, wayInTime{variant: v, kind: k, batch: b, exec: sim.Time(p.Exec(b)), lost: 1 - m.Variants[v].Accuracy})
				}
			}
		}
		h.ways = append(h.ways, ways)
	}
	return h
}

// cut leaves only the batches around a second in the schedule, so that steps are quick, until the returned function puts
// the others back.
func (h *hindsight) cut(second int) func() {
	whole, at := h.devices, make([][2]int, len(h.devices))
	h.devices = make([][]batchInTime, len(whole))
	for d, all := range whole {
		for k, until := range []sim.Time{sim.Time(second-3) * 1e9, sim.Time(second+4) * 1e9} {
			at[d][k], _ = slices.BinarySearchFunc(all, until, func(b batchInTime, t sim.Time) int { return cmp.Compare(b.start, t) })
		}
		h.devices[d] = slices.Clone(all[at[d][0]:at[d][1]])
	}
	return func() {
		for d, all := range whole {
			h.devices[d] = slices.Concat(all[:at[d][0]], h.devices[d], all[at[d][1]:])
		}
	}
}

// secondOf returns the second in which a request arrived.
func (h *hindsight) secondOf(r int32) int { return int(h.w.Arrivals[r].At / 1e9) }

// count adds what a batch loses, times sign, to the seconds of its requests.
func (h *hindsight) count(b *batchInTime, sign float64) {
	lost := sign * (1 - h.w.Models[b.model].Variants[b.variant].Accuracy)
	for _, r := range b.requests {
		h.lost[h.secondOf(r)] += lost
	}
}

// excess returns how much some seconds lose beyond their goals, and a little of what they lose in all.
func (h *hindsight) excess(from, to int) (sum float64) {
	for i := max(0, from); i < min(to, len(h.lost)); i++ {
		sum += max(0, h.lost[i]-h.goal[i]) + h.lost[i]/100
	}
	return sum
}

// heat is what a step that stays may lose, in answers and in the mean.
const heat = 0.002

// improve changes a second's schedule, and undoes that if more than chance allows is lost by it.
func (h *hindsight) improve(second int) {
	before, lost := h.excess(second-2, second+3), slices.Clone(h.lost[max(0, second-2):min(len(h.lost), second+3)])
	clear(h.before)
	for f := range h.queues {
		h.queues[f] = h.queues[f][:0]
	}

	at, devices := h.lossy(second)
	h.takeOut(at, devices)
	prices := make([]float64, len(h.kinds)) // of a second of a device, in answers
	for k := range prices {
		prices[k] = math.Exp(h.rng.Float64()*5 - 4)
	}
	ok := len(h.before) > 0
	for f := range h.queues {
		if len(h.queues[f]) > 0 {
			slices.SortFunc(h.queues[f], func(a, b int32) int { return cmp.Compare(a, b) })
			h.weigh(f, prices)
		}
	}
	for f := h.next(); ok && f >= 0; f = h.next() {
		ok = h.place(f)
	}
	if ok && h.excess(second-2, second+3) <= before+heat*h.rng.ExpFloat64() {
		return
	}

	for d, all := range h.before {
		h.devices[d] = all
	}
	copy(h.lost[max(0, second-2):], lost)
}

// lossy draws a batch of a second's requests, the rather the more it loses, and returns when it starts, and its device
// with some others.
func (h *hindsight) lossy(second int) (at sim.Time, devices uint64) {
	left := h.rng.Float64() * h.lost[second]
	for d, all := range h.devices {
		for i := range all {
			b := &all[i]
			if h.secondOf(b.requests[0]) != second {
				continue
			}
			if left -= float64(len(b.requests)) * (1 - h.w.Models[b.model].Variants[b.variant].Accuracy); left <= 0 {
				devices = 1 << d
				for range h.rng.IntN(10) {
					devices |= 1 << h.rng.IntN(len(h.devices))
				}
				return b.start, devices
			}
		}
	}
	return sim.Time(second) * 1e9, math.MaxUint64
}

// takeOut takes the batches of some models on some devices out that start about a time.
func (h *hindsight) takeOut(at sim.Time, devices uint64) {
	models := h.rng.Uint32() | h.rng.Uint32() | h.rng.Uint32()
	span := sim.Time(1+h.rng.IntN(200)) * 1e6
	at -= sim.Time(h.rng.Int64N(int64(span)))
	for d := range h.devices {
		if devices>>d&1 == 0 {
			continue
		}
		first, _ := slices.BinarySearchFunc(h.devices[d], at, func(b batchInTime, t sim.Time) int { return cmp.Compare(b.start, t) })
		var kept []batchInTime
		k := first
		for ; k < len(h.devices[d]) && h.devices[d][k].start <= at+span; k++ {
			b := h.devices[d][k]
			if models>>b.model&1 == 0 {
				kept = append(kept, b)
				continue
			}
			h.count(&b, -1)
			h.queues[b.model] = append(h.queues[b.model], b.requests...)
		}
		if len(kept) < k-first {
			h.before[d] = h.devices[d]
			h.devices[d] = slices.Concat(h.devices[d][:first], kept, h.devices[d][k:])
		}
	}
}
