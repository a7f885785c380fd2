package layers

import (
	"fmt"
	"slices"

	"downbeat.dev/cuda/kernels"
)

// lowerLinears multiplies x by several matrices side by side, as one product.
func lowerLinears(c *compiler, n *Node) error {
	if err := c.requireFloat(0, 1, 2); err != nil {
		return err
	}

	x, w := c.plainInput(0), c.plainInput(1)
	if len(n.Inputs)%2 != 1 || len(x.Dims) < 2 || len(w.Dims) != 2 || x.Dims[len(x.Dims)-1] != w.Dims[0] {
		return fmt.Errorf("%d inputs, shapes %v and %v", len(n.Inputs), x.Dims, w.Dims)
	}

	k, each, parts := w.Dims[0], w.Dims[1], len(n.Inputs)/2
	join := &tensor{Value: Value{Name: n.Name, Type: Float32, Dims: []int{k, each * parts}}, buffer: -1, stored: Float32, source: "joined"}
	bias := &tensor{Value: Value{Name: n.Name, Type: Float32, Dims: []int{each * parts}}, buffer: -1, stored: Float32, source: "joined"}

	for i := range parts {
		w, b := c.plainInput(1+2*i), c.plainInput(2+2*i)

		// All batch sizes share joined weights under a name made of their sources, which only initialisers have.
		if w == nil || b == nil || !w.isConstant() || !b.isConstant() || w.source == "" || b.source == "" || w.Type != Float32 || b.Type != Float32 ||
			!slices.Equal(w.Dims, []int{k, each}) || b.elements() != each {
			return fmt.Errorf("part %d: weights that are not initialisers of %d by %d: %w", i, k, each, ErrUnsupported)
		}

		join.source += "/" + w.source
		bias.source += "/" + b.source
		bias.data = append(bias.data, b.data...)
	}

	// The weights lie side by side, so that one product computes all parts.
	if join.data = c.g.derived[join.source]; join.data == nil {
		join.data = make([]byte, 4*k*each*parts)
		for i := range parts {
			from := c.plainInput(1 + 2*i).data
			for row := range k {
				copy(join.data[4*each*(row*parts+i):], from[4*each*row:4*each*(row+1)])
			}
		}
		c.g.derived[join.source] = join.data
	}

	dims := append(slices.Clone(x.Dims[:len(x.Dims)-1]), each*parts)
	p := kernels.Gemm{M: int32(countElements(x.Dims[:len(x.Dims)-1])), N: int32(each * parts), K: int32(k), B1: 1, B2: 1, AM: int32(k), AK: 1,
		BK: int32(each * parts), BN: 1, BiasN: 1, Alpha: 1, Beta: 1}
	return c.emitProduct(&p, x, join, bias, n.Outputs[0], dims)
}

// lowerAttention takes Q, K and V as [B,S,heads·size], or one tensor with the three side by side, and a mask that is
// added to the scores.
func lowerAttention(c *compiler, n *Node) error {
	heads, size := c.intAttr("heads", 0), c.intAttr("size", 0)
	var parts [3]*tensor
	mask := c.plainInput(len(n.Inputs) - 1)

	// Q, K and V are separate inputs, or one tensor in which they lie side by side.
	joined := len(n.Inputs) == 2
	for i := range parts {
		if parts[i] = c.plainInput(0); !joined {
			parts[i] = c.plainInput(i)
		}
		if len(n.Inputs) != 4 && !joined || parts[i] == nil || parts[i].Type != Float32 || len(parts[i].Dims) != 3 {
			return fmt.Errorf("%d inputs: want Q, K, V and a mask of three dimensions each", len(n.Inputs))
		}
	}

	q, k, v := parts[0], parts[1], parts[2]
	width, all := heads*size, heads*size
	if joined {
		all *= 3
	}

	if heads < 1 || size < 1 || heads > elementsMax || size > kernels.AttentionSizeMax || q.Dims[0] != k.Dims[0] || !slices.Equal(k.Dims, v.Dims) || q.Dims[2] != all || k.Dims[2] != all {
		return fmt.Errorf("%d heads of %d for %v, %v and %v", heads, size, q.Dims, k.Dims, v.Dims)
	}

	b, rows, cols := q.Dims[0], q.Dims[1], k.Dims[1]
	p := kernels.Attention{QBatch: int64(rows * all), KBatch: int64(cols * all), VBatch: int64(cols * all), QRow: int32(all), KRow: int32(all), VRow: int32(all),
		QHead: int32(size), KHead: int32(size), VHead: int32(size), Batch: int32(b), Heads: int32(heads), Rows: int32(rows), Cols: int32(cols),
		Size: int32(size), Scale: c.floatAttr("scale", 1)}

	if mask != nil {
		dims := []int{b, heads, rows, cols}
		if got, err := broadcastShape(mask.Dims, dims); err != nil || !slices.Equal(got, dims) || mask.Type != Float32 {
			return fmt.Errorf("mask %v of %v for %v", mask.Dims, mask.Type, dims)
		}

		// The stride of the mask is 0 where it repeats.
		s := mask.spreadStrides(dims)
		p.MBatch, p.MHead, p.MRow, p.MCol = int64(s[0]), int32(s[1]), int32(s[2]), int32(s[3])
	}

	y, err := c.makeResult(n.Outputs[0], Float32, []int{b, rows, heads, size})
	if err != nil {
		return err
	}

	p.Q, p.K, p.V, p.Mask, p.Y = c.refOf(q), c.refOf(k), c.refOf(v), c.refOf(mask), c.refOf(y)
	if joined { // refs count bytes
		p.K += uint64(width * q.stored.Size())
		p.V += uint64(2 * width * q.stored.Size())
	}

	// There are two products of rows by columns by size, with two operations per element.
	c.layer.FLOP += 4 * int64(b) * int64(heads) * int64(rows) * int64(cols) * int64(size)
	grid, block := p.Launch()
	emitLaunch(c, "attention", 5, grid, block, &p)
	return nil
}
