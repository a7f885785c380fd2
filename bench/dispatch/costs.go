package dispatch

import (
	"time"

	"downbeat.dev/bench/median"
	"downbeat.dev/bench/usage"
)

// costs are what a request of a load costs in processor time, in ns.
type costs struct {
	engine    float64
	floor     float64 // the generator and the moves alone: see floor
	generator float64
	ratio     float64 // of engine and floor
}

// turns is how often engine, floor and generator take their turn.
const turns = 9

// virtualCosts measures costs in virtual time, without waiting and lag. A machine's speed changes within minutes, and so
// do the shares of its caches that other machines leave. Therefore each turn measures all of them one after the other; the
// costs are medians.
func virtualCosts(set Setting) (costs, error) {
	var v, floorTime, generatorTime virtual
	v.now, floorTime.now, generatorTime.now = 1, 1, 1
	r, err := newRig(set, &v)
	if err != nil {
		return costs{}, err
	}
	defer r.closeRig()

	_, floor := newFloor(r)
	generator := r.newCore(0, nobody{})
	rate := min(20e6, 0.7*r.set.fullRate())

	// The first passes grow every pool, and do not count.
	const requests = 2e6
	span := time.Duration(requests / rate * 1e9)
	r.stepVirtual(&v, rate, 2*span)
	floor.stepVirtual(&floorTime, rate, span)

	var all [turns]costs
	for i := range all {
		x := &all[i]
		x.engine = costOf(r.cores[0], &v, rate, span)
		x.floor = costOf(floor, &floorTime, rate, span)
		x.generator = costOf(generator, &generatorTime, rate, span)
		x.ratio = x.engine / x.floor
	}
	return medianCosts(all[:]), nil
}

// costOf returns the processor time of a request at a rate for a span.
func costOf(c *core, v *virtual, rate float64, span time.Duration) float64 {
	before := c.sent
	start := usage.ProcessorTime()
	c.stepVirtual(v, rate, span)
	return float64(usage.ProcessorTime()-start) / float64(c.sent-before)
}

// medianCosts returns the median of each field.
func medianCosts(all []costs) costs {
	medianField := func(of func(*costs) float64) float64 {
		var values []float64
		for i := range all {
			values = append(values, of(&all[i]))
		}
		return median.Of(values)
	}
	return costs{
		engine:    medianField(func(c *costs) float64 { return c.engine }),
		floor:     medianField(func(c *costs) float64 { return c.floor }),
		generator: medianField(func(c *costs) float64 { return c.generator }),
		ratio:     medianField(func(c *costs) float64 { return c.ratio }),
	}
}
