package layers

import (
	"errors"
	"fmt"
	"slices"
)

// declareInputs declares constants and inputs, and counts users.
func (c *compiler) declareInputs() error {
	for i := range c.g.Constants {
		k := &c.g.Constants[i]
		if err := k.checkData(); err != nil {
			return err
		}

		// An empty constant needs data too; nil would mean that the value is computed.
		data := k.Data
		if data == nil {
			data = []byte{}
		}
		c.values[k.Name] = &tensor{Value: k.Value, data: data, source: k.Name, buffer: -1, stored: k.Type}
	}

	for i, in := range c.g.Inputs {
		// Only the first dimension may be the batch. Every other one must be a number, because buffers are laid out
		// now.
		dims := slices.Clone(in.Dims)
		for d, n := range dims {
			if n == -1 && d == 0 {
				dims[d], c.batched = c.batch, true
			} else if n < 1 {
				return fmt.Errorf("input %q: dimension %d of %v is not fixed: %w", in.Name, d, in.Dims, ErrUnsupported)
			}
		}

		if (len(in.Dims) == 0 || in.Dims[0] != -1) && c.batch != 1 {
			return fmt.Errorf("input %q: shape %v has no batch dimension: %w", in.Name, in.Dims, ErrUnsupported)
		}

		t, err := c.newTensor(in.Name, in.Type, dims)
		if err != nil {
			return err
		}

		// Clients send float32, whatever the plan's precision.
		t.stored = t.Type
		t.buffer = c.addBuffer(Buffer{Kind: Input, Bytes: t.byteSize(), Index: i})
		c.plan.Inputs = append(c.plan.Inputs, Tensor{Value: t.Value, Layer: -1})
		if err := c.narrowInput(t); err != nil {
			return err
		}
	}

	// A value's users decide whether the step that computes it may fuse them.
	for i := range c.g.Nodes {
		for _, in := range c.g.Nodes[i].Inputs {
			c.users[in] = append(c.users[in], i)
		}
	}

	// Outputs must exist as buffers, so no step may fuse them away.
	for _, o := range c.g.Outputs {
		c.ends[o] = true
	}
	return nil
}

// narrowInput converts a float input to the plan's precision, in its own layer.
func (c *compiler) narrowInput(t *tensor) error {
	if t.stored == c.precision.storedType(t.Type) {
		return nil
	}

	// The same cast moves the channels of images to the end.
	y := &tensor{Value: t.Value, stored: c.precision.storedType(t.Type), last: len(t.Dims) == 4}
	y.buffer = c.addBuffer(Buffer{Kind: Activation, Bytes: y.byteSize()})

	c.layer = &Layer{Name: t.Name, Op: "Cast"}
	if err := c.convertType(t, y); err != nil {
		return err
	}

	c.plan.Layers = append(c.plan.Layers, *c.layer)
	c.values[t.Name] = y
	return nil
}

// widenOutputs converts the outputs of the current layer to float32 within the layer, so that an early output is
// complete when its layer is.
func (c *compiler) widenOutputs() error {
	if c.precision == FP32 {
		return nil
	}
	for _, name := range c.g.Outputs {
		t := c.values[name]
		if t == nil || t.isConstant() || t.Type != Float32 || c.wide[name] != nil {
			continue
		}

		y := &tensor{Value: t.Value, stored: Float32}
		y.buffer = c.addBuffer(Buffer{Kind: Activation, Bytes: y.byteSize()})

		if err := c.convertType(t, y); err != nil {
			return err
		}
		c.wide[name] = y
	}
	return nil
}

// finishOutputs gives each output of the graph an output buffer.
func (c *compiler) finishOutputs() error {
	if len(c.g.Outputs) == 0 {
		return errors.New("no outputs")
	}

	for i, name := range c.g.Outputs {
		t := c.values[name]
		if t == nil {
			return fmt.Errorf("output %q is not computed", name)
		}
		if c.batched && (len(t.Dims) == 0 || t.Dims[0] != c.batch) {
			return fmt.Errorf("output %q: shape %v does not begin with the batch of %d: %w", name, t.Dims, c.batch, ErrUnsupported)
		}

		// In half precision clients get the float32 copy.
		if w := c.wide[name]; w != nil {
			t = w
		}

		// An output needs its own buffer, in the type that clients see, so inputs, constants and views are copied.
		if t.buffer < 0 || c.plan.Buffers[t.buffer].Kind != Activation || t.stored != t.Type || t.last {
			var err error
			if t, err = c.copyOutput(t); err != nil {
				return err
			}
		}

		b := &c.plan.Buffers[t.buffer]
		b.Kind, b.Index = Output, i
		c.plan.Outputs = append(c.plan.Outputs, Tensor{Value: Value{name, t.Type, t.Dims}, Layer: c.lastWrite(t.buffer)})
	}
	return nil
}
