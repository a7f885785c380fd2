package wire

import (
	"fmt"
	"math"

	"downbeat.dev/core/model"
)

// A model has at most one input that takes pictures.
const picturesMax = 1

// pictureBytesMin is the least size of an input's picture.
const pictureBytesMin = 1 + 1 + 2 + 7*4 + 4

// picturesOf writes how pictures become a model's inputs, for the inputs that take them.
func (e *encoder) picturesOf(m *model.Info) {
	n := 0
	for i := range m.Inputs {
		if m.Inputs[i].Picture != nil {
			n++
		}
	}

	e.putSmall("inputs of "+m.Name+" that take pictures", n, picturesMax)

	for i := range m.Inputs {
		p := m.Inputs[i].Picture
		if p == nil {
			continue
		}
		e.b = append(e.b, byte(i))
		e.bool(p.ChannelsFirst)
		e.text("channels of pictures", p.Channels, NameBytesMax)
		e.f32(p.Scale)
		for k := range p.Mean {
			e.f32(p.Mean[k])
			e.f32(p.Std[k])
		}
		e.u32(p.ShorterSide)
	}
}

// picturesOf reads what picturesOf of an encoder wrote. It refuses pictures that do not fit their input, so that no
// other code needs to check.
func (d *decoder) picturesOf(m *model.Info) {
	for range d.readSmall("inputs that take pictures", picturesMax, pictureBytesMin) {
		i := int(d.u8())
		p := &model.Picture{ChannelsFirst: d.bool("channels first"), Channels: d.text("channels of pictures", NameBytesMax), Scale: d.f32()}
		for k := range p.Mean {
			p.Mean[k], p.Std[k] = d.f32(), d.f32()
		}
		p.ShorterSide = d.u32()

		switch {
		case d.err != nil:
			return
		case i >= len(m.Inputs):
			d.keepError(fmt.Errorf("%w: input %d of %q takes pictures, it has %d inputs", ErrMalformed, i, m.Name, len(m.Inputs)))
			return
		}
		m.Inputs[i].Picture = p
		if err := m.Inputs[i].CheckPicture(); err != nil {
			d.keepError(fmt.Errorf("%w: input of %q: %w", ErrMalformed, m.Name, err))
			return
		}
	}
}

func (e *encoder) f32(v float32) { e.u32(math.Float32bits(v)) }

func (d *decoder) f32() float32 { return math.Float32frombits(d.u32()) }
