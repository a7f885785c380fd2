package swarm

import "downbeat.dev/core/wire"

// Messages of a peer of the previous version are encoded, rewritten in that version, and decoded.

// recodeMessages returns the messages of frames as a peer of wire.VersionMin would read or write them.
func recodeMessages[T any](c *Cluster, frames []byte, decode func([]T, wire.Frame) ([]T, error)) []T {
	var all []T

	c.recoding.Reset(wire.SetVersion(frames, wire.VersionMin))
	for f, err := c.recoder.Next(); err == nil; f, err = c.recoder.Next() {
		m, err := decode(nil, f)
		if err != nil {
			c.check.fail("C11: a message in version %d: %v", wire.VersionMin, err)
			return nil
		}
		all = append(all, m...)
	}
	return all
}

func (c *Cluster) recodeSubmits(m []wire.Submit) []wire.Submit {
	return recodeMessages(c, wire.AppendSubmits(nil, m), wire.DecodeSubmits)
}

func (c *Cluster) recodeOutcomes(m []wire.Outcome) []wire.Outcome {
	return recodeMessages(c, wire.AppendOutcomes(nil, m), wire.DecodeOutcomes)
}

func (c *Cluster) recodeDone(m wire.Done) wire.Done {
	if all := recodeMessages(c, wire.AppendDones(nil, []wire.Done{m}), wire.DecodeDones); len(all) == 1 {
		return all[0]
	}
	c.check.fail("C11: a Done became none")
	return m
}

func (c *Cluster) recodeOrder(o *order) *order {
	y := *o
	if all := recodeMessages(c, wire.AppendExecutes(nil, []wire.Execute{o.x}), wire.DecodeExecutes); len(all) == 1 {
		y.x = all[0]
	} else {
		c.check.fail("C11: an Execute became %d", len(all))
	}
	return &y
}
