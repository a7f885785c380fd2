package picture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	stddraw "image/draw"
	"image/jpeg"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/draw"

	"downbeat.dev/core/model"
)

// Decode makes a row of t from a file whose header was read. It stops with the context's error.
func Decode(ctx context.Context, row, file []byte, t *model.Tensor) error {
	from := &untilDone{ctx, bytes.NewReader(file)}
	decode := jpeg.Decode
	if bytes.HasPrefix(file, []byte(pngSignature)) {
		decode = png.Decode
	}

	decoded, err := decode(from)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return fmt.Errorf("the file ends before its picture: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return err
	}

	height, width := t.Picture.Size(t.Shape)
	pixels := image.NewRGBA(image.Rect(0, 0, width, height))
	if err := scalePicture(ctx, pixels, dropAlpha(decoded), t); err != nil {
		return err
	}

	if t.Datatype == model.Uint8 {
		packBytes(row, pixels, t.Picture)
		return nil
	}

	packFloats(row, pixels, t.Picture)
	return nil
}

// untilDone reads until a context is done, in pieces so small that a decoder cannot work on one for long.
type untilDone struct {
	ctx  context.Context
	from io.Reader
}

const pieceBytes = 512

// Read implements io.Reader.
func (r *untilDone) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(p[:min(len(p), pieceBytes)])
}

// dropAlpha returns a decoded picture without its alpha; the colours do not change.
func dropAlpha(p image.Image) image.Image {
	// Decoders return other types only for files without alpha.
	switch p := p.(type) {
	case *image.NRGBA:
		for i := 3; i < len(p.Pix); i += 4 {
			p.Pix[i] = 0xFF
		}
	case *image.NRGBA64:
		for i := 6; i+1 < len(p.Pix); i += 8 {
			p.Pix[i], p.Pix[i+1] = 0xFF, 0xFF
		}

	// The pixels of a picture with a palette are numbers of its colours.
	case *image.Paletted:
		for i, c := range p.Palette {
			if c, ok := c.(color.NRGBA); ok {
				c.A = 0xFF
				p.Palette[i] = c
			}
		}
	}
	return p
}

// scalePicture draws a picture to the tensor's size, until ctx is done. A picture of that size keeps its values.
func scalePicture(ctx context.Context, to *image.RGBA, p image.Image, t *model.Tensor) (err error) {
	from := cutOut(p.Bounds().Dx(), p.Bounds().Dy(), t).Add(p.Bounds().Min)
	if from.Size() == to.Rect.Size() {
		stddraw.Draw(to, to.Rect, p, from.Min, stddraw.Src)
		return ctx.Err()
	}

	if asked, ok := p.(image.RGBA64Image); ok && asksEachPixel(p) {
		p = &untilDonePixels{asked, ctx, 0}
	}
	defer func() {
		if why := recover(); why != nil && why != errStopped {
			panic(why)
		}
		err = ctx.Err()
	}()

	// This scaler averages over all pixels that become one, as PIL's and torchvision's do.
	draw.BiLinear.Scale(to, to.Rect, p, from, draw.Src, nil)
	return nil
}

// asksEachPixel reports whether the scaler has no code of its own for a picture's type. Then it asks for one pixel after the
// other, which takes seconds for the largest picture.
func asksEachPixel(p image.Image) bool {
	switch p := p.(type) {
	case *image.Gray, *image.NRGBA, *image.RGBA:
		return false
	case *image.YCbCr:
		return p.SubsampleRatio == image.YCbCrSubsampleRatio411 || p.SubsampleRatio == image.YCbCrSubsampleRatio410
	}
	return true
}

// untilDonePixels ends a scaler, which knows no context, once the context is done: RGBA64At panics with errStopped.
type untilDonePixels struct {
	image.RGBA64Image
	ctx   context.Context
	asked int
}

// RGBA64At implements image.RGBA64Image.
func (p *untilDonePixels) RGBA64At(x, y int) color.RGBA64 {
	if p.asked++; p.asked%pieceBytes == 0 && p.ctx.Err() != nil {
		panic(errStopped)
	}
	return p.RGBA64Image.RGBA64At(x, y)
}

var errStopped = errors.New("the context is done")

// cutOut returns the part of a picture that becomes the tensor: all of it, or the centre that remains once the shorter
// side has its length. The part is cut out before it is scaled, so that the rest of a long strip costs nothing.
func cutOut(width, height int, t *model.Tensor) image.Rectangle {
	side := int(t.Picture.ShorterSide)
	if side == 0 {
		return image.Rect(0, 0, width, height)
	}

	h, w := t.Picture.Size(t.Shape)
	shorter := min(width, height)
	w, h = max(1, (w*shorter+side/2)/side), max(1, (h*shorter+side/2)/side)
	x, y := (width-w)/2, (height-h)/2
	return image.Rect(x, y, x+w, y+h)
}

// eachElement calls each with the place of every element in the row, its channel and its value.
func eachElement(p *image.RGBA, as *model.Picture, each func(at, channel int, value uint8)) {
	pixels, channels := p.Rect.Dx()*p.Rect.Dy(), as.Count()
	next, plane := channels, 1 // the distance of two pixels of a channel, and of two channels of a pixel
	if as.ChannelsFirst {
		next, plane = 1, pixels
	}

	for i := range pixels {
		rgb := p.Pix[4*i : 4*i+3 : 4*i+3]
		switch as.Channels {
		case model.ChannelsGray:
			each(i*next, 0, grayOf(rgb))
		case model.ChannelsBGR:
			each(i*next, 0, rgb[2])
			each(i*next+plane, 1, rgb[1])
			each(i*next+2*plane, 2, rgb[0])
		default:
			each(i*next, 0, rgb[0])
			each(i*next+plane, 1, rgb[1])
			each(i*next+2*plane, 2, rgb[2])
		}
	}
}

// grayOf returns the gray of a colour as JPEG and PIL define it. The weights add up to 1<<16, so that a gray does not
// change.
func grayOf(rgb []byte) uint8 {
	return uint8((19595*uint32(rgb[0]) + 38470*uint32(rgb[1]) + 7471*uint32(rgb[2]) + 1<<15) >> 16)
}

func packBytes(row []byte, p *image.RGBA, as *model.Picture) {
	eachElement(p, as, func(at, _ int, value uint8) { row[at] = value })
}

func packFloats(row []byte, p *image.RGBA, as *model.Picture) {
	// A channel has 256 values: each is computed once, and rounded once.
	var bits [3][256]uint32
	for c := range bits {
		for v := range bits[c] {
			x := (float64(v)*float64(as.Scale) - float64(as.Mean[c])) / float64(as.Std[c])
			bits[c][v] = math.Float32bits(float32(x))
		}
	}

	eachElement(p, as, func(at, channel int, value uint8) {
		binary.LittleEndian.PutUint32(row[4*at:], bits[channel][value])
	})
}
