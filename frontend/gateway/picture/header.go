package picture

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"

	"downbeat.dev/core/model"
)

// Limits of a file.
const (
	PixelsMax = 1 << 25 // 33.5 million, of the photo of a good camera
	ScansMax  = 100     // of a JPEG: decoding passes over all its pixels for each scan, however few bytes that has
)

// ErrLimit is wrapped by the errors of files above a limit.
var ErrLimit = errors.New("over the limit")

const pngSignature = "\x89PNG\r\n\x1a\n"

// Header is what a file says of itself.
type Header struct {
	Width, Height int
	decoded       int64 // bytes that decoding the file takes
}

// ReadHeader reads the header of a JPEG or a PNG. It takes no memory for pixels.
func ReadHeader(file []byte) (Header, error) {
	var c image.Config
	var err error
	isPNG := bytes.HasPrefix(file, []byte(pngSignature))
	switch {
	case isPNG:
		c, err = png.DecodeConfig(bytes.NewReader(file))
	case bytes.HasPrefix(file, []byte{0xFF, 0xD8}):
		c, err = jpeg.DecodeConfig(bytes.NewReader(file))
	default:
		return Header{}, fmt.Errorf("%d bytes that begin with %q: neither a JPEG nor a PNG", len(file), file[:min(len(file), 12)])
	}

	switch {
	case err != nil:
		return Header{}, err
	case c.Width < 1 || c.Height < 1:
		return Header{}, fmt.Errorf("%d × %d pixels: must be at least one", c.Width, c.Height)
	case int64(c.Width) > PixelsMax/int64(c.Height):
		return Header{}, fmt.Errorf("%d × %d pixels: %w: must be at most %d in all", c.Width, c.Height, ErrLimit, PixelsMax)
	}

	h := Header{Width: c.Width, Height: c.Height}
	if isPNG {
		h.decoded = pngBytes(file, &c)
		return h, nil
	}

	// Inside a segment the two bytes may be anything else, so the count is too large rather than too small.
	if scans := bytes.Count(file, []byte{0xFF, 0xDA}); scans > ScansMax {
		return Header{}, fmt.Errorf("JPEG of %d scans: %w: must be at most %d", scans, ErrLimit, ScansMax)
	}

	h.decoded = jpegBytes(file, &c)
	return h, nil
}

// pngBytes returns the memory of a decoded PNG: at most a colour with alpha for each pixel, and as much again for the
// passes of an interlaced file.
func pngBytes(file []byte, c *image.Config) int64 {
	// The header is the first chunk, and the config was read from it: depth and interlace are there.
	depth, interlaced := file[24], file[28] != 0
	n := int64(c.Width) * int64(c.Height) * 4
	if depth == 16 {
		n *= 2
	}
	if interlaced {
		n *= 2
	}
	return n + 16*int64(c.Width) + decoderBytes
}

// jpegBytes returns the memory of a decoded JPEG: its planes, which end with whole blocks, one picture of four bytes a
// pixel made of three or four planes, and of a progressive file its coefficients.
func jpegBytes(file []byte, c *image.Config) int64 {
	planes := int64(3)
	switch c.ColorModel {
	case color.GrayModel:
		planes = 1
	case color.CMYKModel:
		planes = 4
	}

	each := planes
	if planes > 1 {
		each += 4
	}

	if bytes.Contains(file, []byte{0xFF, 0xC2}) {
		each += 4 * planes
	}
	return roundUp(c.Width)*roundUp(c.Height)*each + decoderBytes
}

// roundUp rounds a length up to whole blocks, of 32 pixels at most.
func roundUp(n int) int64 { return (int64(n) + 31) &^ 31 }

// decoderBytes is the memory of a decoder beside its picture.
const decoderBytes = 128 << 10

// Memory returns the bytes that Decode takes at most for a row of t.
func (h Header) Memory(t *model.Tensor) int64 {
	height, width := t.Picture.Size(t.Shape)
	from := cutOut(h.Width, h.Height, t)
	n := h.decoded + 4*int64(width)*int64(height)
	if from.Dx() == width && from.Dy() == height {
		return n
	}

	// The scaler keeps four 8-byte numbers for each pixel of the new width and the old height, and lists for each
	// column and row which pixels it is made of.
	return n + 32*int64(width)*int64(from.Dy()) + 64*int64(width+height+from.Dx()+from.Dy())
}
