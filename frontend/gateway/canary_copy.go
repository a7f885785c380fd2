package gateway

import (
	"bytes"
	"context"
	"math"
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// copiesMax bounds a gateway's calls whose copies are under way: a version that hangs must not hold its memory.
const copiesMax = 64

// copied is a call that is copied to a canary's version, with the answer that the client received.
type copied struct {
	canary *canary
	base   *frontend.Model // the model whose answer the client got: of a model with shapes, the class
	whole  *frontend.Model // the version to ask
	inputs [][]byte        // by row
	want   [][]byte        // the client's outputs, by row
	bytes  int64           // counted as memory of messages
}

// copyCall copies a share of the calls that the base answered to the version on trial. The caller does not wait for
// the copies.
func (g *Gateway) copyCall(in *inference, calls []frontend.Call) {
	c := in.canary
	if c == nil || in.tried || c.rule.Shadow == 0 || !c.shadow.picks(c.rule.Shadow) {
		return
	}

	// Both versions may have been unloaded since the call began.
	base := g.client.Model(c.rule.Model, c.rule.Base)
	if base == nil {
		return
	}
	v := g.triedVersion(c, base)
	if v == nil {
		return
	}

	// The copy outlives the call, so its memory is counted separately.
	x := &copied{canary: c, base: in.model, whole: v}
	for i := range calls {
		x.bytes += int64(len(calls[i].Input.Bytes()) + len(calls[i].Result.Data))
	}
	if !g.beginCopy(x.bytes) {
		c.countCopies(len(calls), func(n *CopyEnds) *uint64 { return &n.Skipped })
		return
	}
	for i := range calls {
		x.inputs, x.want = append(x.inputs, bytes.Clone(calls[i].Input.Bytes())), append(x.want, bytes.Clone(calls[i].Result.Data))
	}
	go func() {
		defer g.endCopy(x.bytes)
		g.askCopies(x)
	}()
}

// awaitCopies waits until no copy is under way, and prevents new ones.
func (g *Gateway) awaitCopies() {
	for range copiesMax {
		g.copies <- struct{}{}
	}
}

// beginCopy takes a slot and memory for a call's copies, or returns false if none is free.
func (g *Gateway) beginCopy(bytes int64) bool {
	select {
	case g.copies <- struct{}{}:
	default:
		return false
	}
	if !g.memory.takeBytes(bytes) {
		<-g.copies
		return false
	}
	return true
}

func (g *Gateway) endCopy(bytes int64) {
	g.memory.giveBytes(bytes)
	<-g.copies
}

// askCopies sends each row to the version, with the lowest priority, and compares the answers.
func (g *Gateway) askCopies(x *copied) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := context.AfterFunc(g.closingContext, cancel)
	defer stop()

	// Rows run one after another: no client waits, and the version's GPUs serve other requests.
	to, err := g.classOfCopy(ctx, x)
	for row := range x.inputs {
		var same bool
		var difference float64
		if err == nil {
			same, difference, err = g.askCopy(ctx, to, x, row)
		}

		// After an error the remaining rows are not sent; they count as failed, too.
		x.canary.countCopies(1, func(n *CopyEnds) *uint64 {
			switch {
			case err != nil:
				return &n.Failed
			case !same:
				n.Difference = max(n.Difference, difference)
				return &n.Different
			}
			n.Difference = max(n.Difference, difference)
			return &n.Same
		})
	}
}

// classOfCopy returns the version, or, for a version with shapes, the class of the call's inputs.
func (g *Gateway) classOfCopy(ctx context.Context, x *copied) (*frontend.Model, error) {
	if !x.whole.HasShapes() {
		return x.whole, nil
	}

	// The class that answered has only the inputs that the client gave.
	shapes := make([][]int64, len(x.whole.Inputs))
	for k := range shapes {
		i := slices.IndexFunc(x.base.Inputs, func(t model.Tensor) bool { return t.Name == x.whole.Inputs[k].Name })
		if i >= 0 {
			shapes[k] = x.base.Inputs[i].Shape
		}
	}
	return g.client.ShapeClass(ctx, x.whole, shapes)
}

// askCopy runs one row and compares the answer with the client's.
func (g *Gateway) askCopy(ctx context.Context, to *frontend.Model, x *copied, row int) (same bool, difference float64, err error) {
	in, err := g.client.Buffer(len(x.inputs[row]))
	if err != nil {
		return false, 0, err
	}
	defer in.Free()
	copy(in.Bytes(), x.inputs[row])

	result, err := g.client.Do(ctx, frontend.Request{Model: to.Name, Version: to.RequestVersion(), Input: in})
	if err != nil {
		return false, 0, err
	}
	defer result.Release()
	same, difference = compareOutputs(x.base.Outputs, x.want[row], result.Data, x.canary.rule.Tolerance)
	return same, difference, nil
}

// countCopies adds n to the count that which selects.
func (c *canary) countCopies(n int, which func(*CopyEnds) *uint64) {
	c.counts.mu.Lock()
	defer c.counts.mu.Unlock()
	*which(&c.counts.copies) += uint64(n)
}

// compareOutputs reports whether two rows of outputs are equal within tolerance, and the largest difference of their
// numbers. Texts and rows of different sizes differ by 1 if they differ.
func compareOutputs(outputs []model.Tensor, want, got []byte, tolerance float64) (same bool, difference float64) {
	starts, others := make([]int, len(outputs)+1), make([]int, len(outputs)+1)
	m := &frontend.Model{ModelInfo: model.Info{Outputs: outputs}}
	if !splitOutputs(m, want, starts) || !splitOutputs(m, got, others) {
		return false, 1
	}

	// Texts have no distance: they are equal or not.
	for k := range outputs {
		a, b := want[starts[k]:starts[k+1]], got[others[k]:others[k+1]]
		if outputs[k].Varies() {
			if !bytes.Equal(a, b) {
				return false, 1
			}
			continue
		}
		difference = max(difference, differenceOf(a, b, outputs[k].Datatype))
	}
	return difference <= tolerance, difference
}

// differenceOf returns the largest difference between elements, relative to the larger one, or absolute where both
// are below 1. A NaN differs from a number by 1.
func differenceOf(a, b []byte, datatype model.Datatype) (most float64) {
	size := datatype.Size()
	for at := 0; at+size <= len(a); at += size {
		if bytes.Equal(a[at:at+size], b[at:at+size]) {
			continue // also equal infinities, which have no difference
		}
		x, y := valueOf(a[at:at+size], datatype), valueOf(b[at:at+size], datatype)
		d := math.Abs(x-y) / max(1, math.Abs(x), math.Abs(y))
		if math.IsNaN(x) && math.IsNaN(y) {
			d = 0
		} else if math.IsNaN(d) || math.IsInf(d, 0) {
			d = 1
		}
		most = max(most, d)
	}
	return most
}
