package repo

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"downbeat.dev/core/model"
)

// Parameters that say how a JPEG or a PNG becomes a row of an input.
const (
	paramPicture     = "picture"              // the input's name
	paramChannels    = "picture_channels"     // RGB, BGR or GRAY; by default RGB, or GRAY for one channel
	paramScale       = "picture_scale"        // an element is (value·scale − mean) ÷ std, by default value
	paramMean        = "picture_mean"         // a number, or one for each channel
	paramStd         = "picture_std"          // a number, or one for each channel
	paramShorterSide = "picture_shorter_side" // pixels; absent: the picture is stretched
)

// readPicture reads the picture parameters and gives the input that they name its Picture.
func (d *decoder) readPicture(root *message, c *Config, params map[string]value) error {
	at, given := params[paramPicture]
	if !given {
		return d.refuseUnpictured(params)
	}

	i := slices.IndexFunc(c.Inputs, func(t TensorConfig) bool { return t.Name == at.text })
	switch {
	case i < 0:
		return d.failAt(at, "parameters."+paramPicture, "want the name of an input: %s", strings.Join(inputNames(c), ", "))
	case c.info().HasClasses():
		return d.failAt(at, "parameters."+paramPicture, "the model has variable dimensions or optional inputs: want inputs that are always there, of fixed dims")
	}

	if _, keeps := root.findField("sequence_batching"); keeps {
		return d.failAt(at, "parameters."+paramPicture, "the model has sequence_batching: the input of a step must be there when it is sent")
	}

	t := &c.Inputs[i]
	first, f := t.channelsFirst()
	if f != "" {
		return d.failAt(at, "parameters."+paramPicture, "%s", f)
	}

	p := &model.Picture{ChannelsFirst: first, Scale: 1, Std: [3]float32{1, 1, 1}, Channels: model.ChannelsRGB}
	if count := t.Shape[2]; !first && count == 1 || first && t.Shape[0] == 1 {
		p.Channels = model.ChannelsGray
	}

	if err := d.readPictureFields(p, t, params); err != nil {
		return err
	}

	t.Picture = p
	if err := t.CheckPicture(); err != nil {
		return d.failAt(at, "parameters."+paramPicture, "%v", err)
	}
	return nil
}

// refuseUnpictured refuses picture parameters of a model without the one that names the input.
func (d *decoder) refuseUnpictured(params map[string]value) error {
	for _, key := range slices.Sorted(maps.Keys(params)) {
		if strings.HasPrefix(key, paramPicture+"_") {
			return d.failAt(params[key], "parameters."+key, "no input takes pictures; want parameter %s with the name of one", paramPicture)
		}
	}
	return nil
}

// readPictureFields reads the parameters beside the input's name.
func (d *decoder) readPictureFields(p *model.Picture, t *TensorConfig, params map[string]value) error {
	for _, key := range slices.Sorted(maps.Keys(params)) {
		v, field := params[key], "parameters."+key
		switch key {
		case paramChannels:
			if p.Channels = v.text; p.Channels != model.ChannelsRGB && p.Channels != model.ChannelsBGR && p.Channels != model.ChannelsGray {
				return d.failAt(v, field, "want RGB, BGR or GRAY")
			}
		case paramShorterSide:
			h, w := p.Size(t.Shape)
			n, err := strconv.Atoi(v.text)
			if least := max(h, w); err != nil || n < least || n > model.PictureSideMax {
				return d.failAt(v, field, "want pixels from %d, the larger side of dims %v, to %d", least, t.Shape, model.PictureSideMax)
			}
			p.ShorterSide = uint32(n)
		case paramScale, paramMean, paramStd:
			if t.Datatype != model.FP32 {
				return d.failAt(v, field, "input %q is %s: want TYPE_FP32, or none: other elements are the picture's own values", t.Name, configDatatype(t.Datatype))
			}
		case paramPicture:
		default:
			if strings.HasPrefix(key, paramPicture+"_") {
				return d.failAt(v, field, "unknown parameter; want one of %s", strings.Join([]string{paramChannels, paramMean, paramScale, paramShorterSide, paramStd}, ", "))
			}
		}
	}

	if v, ok := params[paramScale]; ok {
		var scale [3]float32
		if !readNumbers(&scale, v.text, 1) || scale[0] == 0 {
			return d.failAt(v, "parameters."+paramScale, "want a number other than 0, or a fraction such as 1/255")
		}
		p.Scale = scale[0]
	}

	if v, ok := params[paramMean]; ok && !readNumbers(&p.Mean, v.text, p.Count()) {
		return d.failAt(v, "parameters."+paramMean, "want one number, or %d separated by commas, one for each of %s", p.Count(), p.Channels)
	}
	if v, ok := params[paramStd]; ok && (!readNumbers(&p.Std, v.text, p.Count()) || slices.Contains(p.Std[:], 0)) {
		return d.failAt(v, "parameters."+paramStd, "want one number other than 0, or %d separated by commas, one for each of %s", p.Count(), p.Channels)
	}
	return nil
}

// channelsFirst reports whether the channels are the input's first dimension: by its format, or else by the dimension
// that has one or three. f says why neither tells.
func (t *TensorConfig) channelsFirst() (first bool, f string) {
	if len(t.Shape) != 3 {
		return false, "input " + strconv.Quote(t.Name) + ": want three dims: height, width and channels, or channels first"
	}

	of := func(n int64) bool { return n == 1 || n == 3 }
	switch {
	case t.Format == "FORMAT_NCHW":
		return true, ""
	case t.Format == "FORMAT_NHWC":
		return false, ""
	case of(t.Shape[0]) != of(t.Shape[2]):
		return of(t.Shape[0]), ""
	}
	return false, "input " + strconv.Quote(t.Name) + ": dims do not tell where the one or three channels are; want format FORMAT_NHWC or FORMAT_NCHW"
}

// readNumbers reads one number for all of count channels, or one for each. Those beyond count are as the first.
func readNumbers(to *[3]float32, text string, count int) bool {
	parts := strings.Split(text, ",")
	if len(parts) != 1 && len(parts) != count {
		return false
	}

	for i := range to {
		x, ok := readFraction(strings.TrimSpace(parts[i%len(parts)]))
		if !ok {
			return false
		}
		to[i] = x
	}
	return true
}

// readFraction reads a number such as 0.5, or a fraction such as 1/255.
func readFraction(text string) (float32, bool) {
	above, below, divided := strings.Cut(text, "/")
	x, err := parseFloat(above)
	if divided && err == nil {
		var by float64
		by, err = parseFloat(below)
		x /= by
	}

	// A number that float32 cannot hold would make every element infinite, or 0.
	y := float32(x)
	finite := !math.IsInf(float64(y), 0) && !math.IsNaN(float64(y))
	return y, err == nil && finite && (y != 0) == (x != 0)
}

func inputNames(c *Config) (all []string) {
	for i := range c.Inputs {
		all = append(all, strconv.Quote(c.Inputs[i].Name))
	}
	return all
}
