package layers

import "fmt"

// tensor is a value during compilation: a constant, or a place in a buffer.
type tensor struct {
	Value
	data   []byte // of a constant
	source string // the name of the initialiser, if data is one without changes
	buffer int    // −1 while a constant is not yet a parameter
	stored DataType
	last   bool    // channels last: see layout.go
	other  *tensor // the same value in the other order, if it was needed
}

func (t *tensor) isConstant() bool { return t.data != nil }

func (t *tensor) elements() int {
	n := 1
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

func (t *tensor) byteSize() int64 { return int64(t.elements()) * int64(t.stored.Size()) }

func (c *compiler) newTensor(name string, typ DataType, dims []int) (*tensor, error) {
	if typ.Size() == 0 {
		return nil, fmt.Errorf("value %q: %v: %w", name, typ, ErrUnsupported)
	}

	// Kernels index by 32 bits, and a launch needs elements.
	if n, err := Elements(dims); err != nil || n == 0 {
		if err == nil {
			err = fmt.Errorf("shape %v is empty: %w", dims, ErrUnsupported)
		}
		return nil, fmt.Errorf("value %q: %w", name, err)
	}
	if c.values[name] != nil {
		return nil, fmt.Errorf("value %q is defined twice", name)
	}

	t := &tensor{Value: Value{Name: name, Type: typ, Dims: dims}, buffer: -1, stored: c.precision.storedType(typ)}
	c.values[name] = t
	return t, nil
}

func (c *compiler) addBuffer(b Buffer) int {
	c.plan.Buffers = append(c.plan.Buffers, b)
	return len(c.plan.Buffers) - 1
}

// plainInput returns input i of the node in the plain order; nil if it is omitted.
func (c *compiler) plainInput(i int) *tensor {
	t, err := c.plainOrder(c.anyInput(i))
	if err != nil {
		panic(err) // four dimensions or fewer can be joined
	}
	return t
}

// anyInput returns input i of the node as stored; nil if it is omitted.
func (c *compiler) anyInput(i int) *tensor {
	if i >= len(c.node.Inputs) || c.node.Inputs[i] == "" {
		return nil
	}
	return c.values[c.node.Inputs[i]]
}

// makeResult makes the value of an output that a launch writes.
func (c *compiler) makeResult(name string, typ DataType, dims []int) (*tensor, error) {
	t, err := c.newTensor(name, typ, dims)
	if err != nil {
		return nil, err
	}

	t.buffer = c.addBuffer(Buffer{Kind: Activation, Bytes: t.byteSize()})
	return t, nil
}

// aliasResult makes an output that shares its input's bytes in another shape.
func (c *compiler) aliasResult(name string, of *tensor, dims []int) error {
	t, err := c.newTensor(name, of.Type, dims)
	if err != nil {
		return err
	}

	t.buffer, t.data, t.source, t.stored = of.buffer, of.data, of.source, of.stored
	return nil
}

// copyOutput gives an output its own buffer if it is an input, a constant or another output.
func (c *compiler) copyOutput(t *tensor) (*tensor, error) {
	c.layer = &Layer{Name: t.Name, Op: "Copy"}
	out := &tensor{Value: t.Value, stored: t.Type}
	out.buffer = c.addBuffer(Buffer{Kind: Activation, Bytes: out.byteSize()})

	if err := c.convertType(t, out); err != nil {
		return nil, err
	}

	c.plan.Layers = append(c.plan.Layers, *c.layer)
	return out, nil
}

// lastWrite returns the last layer that writes a buffer. Only one layer writes a buffer: the first that refers to it.
func (c *compiler) lastWrite(buffer int) int {
	for l := range c.plan.Layers {
		hit := false
		for s := range c.plan.Layers[l].Steps {
			c.plan.Layers[l].Steps[s].eachBuffer(func(b int) { hit = hit || b == buffer })
		}
		if hit {
			return l
		}
	}
	return -1
}
