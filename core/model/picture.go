package model

import (
	"fmt"
	"math"
)

// Orders of a picture's channels in a tensor.
const (
	ChannelsRGB  = "RGB"
	ChannelsBGR  = "BGR"
	ChannelsGray = "GRAY"
)

// PictureSideMax is the largest ShorterSide.
const PictureSideMax = 1 << 14

// Picture says how a JPEG or a PNG becomes a row of an input, whose shape is its size. An element is
// (value·Scale − Mean) ÷ Std, where value is 0…255 and Mean and Std are those of the element's channel.
type Picture struct {
	ChannelsFirst bool   // the shape is channels, height, width (NCHW) instead of height, width, channels (NHWC)
	Channels      string // ChannelsRGB, ChannelsBGR or ChannelsGray
	Scale         float32
	Mean, Std     [3]float32 // in the order of Channels; ChannelsGray uses only the first
	// ShorterSide is the length in pixels to which the shorter side is scaled before the centre is cut out; 0: the
	// whole picture is stretched to the tensor's size.
	ShorterSide uint32
}

// Count returns the number of channels.
func (p *Picture) Count() int {
	if p.Channels == ChannelsGray {
		return 1
	}
	return 3
}

// Size returns the height and the width of an input in pixels.
func (p *Picture) Size(shape []int64) (height, width int) {
	if p.ChannelsFirst {
		return int(shape[1]), int(shape[2])
	}
	return int(shape[0]), int(shape[1])
}

// CheckPicture returns an error if pictures cannot be made into rows of t as its Picture says.
func (t *Tensor) CheckPicture() error {
	p := t.Picture
	switch {
	case t.Datatype != FP32 && t.Datatype != Uint8:
		return fmt.Errorf("%q: pictures for datatype %s: want FP32 or UINT8", t.Name, t.Datatype)
	case len(t.Shape) != 3 || t.IsOpen() || t.IsEmpty():
		return fmt.Errorf("%q: pictures for shape %v: want three fixed dimensions: height, width and channels, or channels first", t.Name, t.Shape)
	case p.Channels != ChannelsRGB && p.Channels != ChannelsBGR && p.Channels != ChannelsGray:
		return fmt.Errorf("%q: channels of pictures: %q: want RGB, BGR or GRAY", t.Name, p.Channels)
	}

	for _, x := range append([]float32{p.Scale}, append(p.Mean[:], p.Std[:]...)...) {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return fmt.Errorf("%q: scale, mean or std of pictures: %v: want a finite number", t.Name, x)
		}
	}

	channels := t.Shape[2]
	if p.ChannelsFirst {
		channels = t.Shape[0]
	}

	h, w := p.Size(t.Shape)
	switch {
	case p.Std[0] == 0 || p.Std[1] == 0 || p.Std[2] == 0:
		return fmt.Errorf("%q: std of pictures: %v: want numbers other than 0", t.Name, p.Std)
	case channels != int64(p.Count()):
		return fmt.Errorf("%q: pictures for shape %v with %d channels: %s has %d", t.Name, t.Shape, channels, p.Channels, p.Count())
	case h > PictureSideMax || w > PictureSideMax:
		return fmt.Errorf("%q: pictures for shape %v: want a height and a width of at most %d", t.Name, t.Shape, PictureSideMax)
	case p.ShorterSide != 0 && (int(p.ShorterSide) < max(h, w) || p.ShorterSide > PictureSideMax):
		return fmt.Errorf("%q: shorter side of pictures: %d: want %d, the larger side of shape %v, to %d", t.Name, p.ShorterSide, max(h, w), t.Shape, PictureSideMax)
	}
	return nil
}

// AgreeOnPictures returns a's tensors, without the Picture of those that are made differently in b.
func AgreeOnPictures(a, b []Tensor) []Tensor {
	for i := range min(len(a), len(b)) {
		if p, q := a[i].Picture, b[i].Picture; p != nil && (q == nil || *p != *q) {
			a = append([]Tensor(nil), a...) // the caller's list is shared
			a[i].Picture = nil
		}
	}
	return a
}

// SamePictures reports whether the same inputs of two lists take pictures, in the same way.
func SamePictures(a, b []Tensor) bool {
	for i := range min(len(a), len(b)) {
		if p, q := a[i].Picture, b[i].Picture; (p == nil) != (q == nil) || p != nil && *p != *q {
			return false
		}
	}
	return true
}
