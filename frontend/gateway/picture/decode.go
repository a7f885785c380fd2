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

	p = newUntilDonePixels(ctx, p, from)
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

// untilDonePixels ends a scaler, which knows no context, once the context is done: RGBA64At panics with errStopped. It
// computes the colours of a row once, as the scaler asks for each pixel of a row before the next, and most of them twice.
type untilDonePixels struct {
	image.Image
	ctx context.Context
	row []color.RGBA64
	at  image.Point // of the row's first pixel
}

// newUntilDonePixels returns the part of a picture that a scaler is to read.
func newUntilDonePixels(ctx context.Context, p image.Image, part image.Rectangle) *untilDonePixels {
	return &untilDonePixels{p, ctx, make([]color.RGBA64, part.Dx()), image.Pt(part.Min.X, part.Min.Y-1)}
}

// RGBA64At implements image.RGBA64Image.
func (p *untilDonePixels) RGBA64At(x, y int) color.RGBA64 {
	if y != p.at.Y {
		p.readRow(y)
	}
	return p.row[x-p.at.X]
}

// readRow computes the colours of a row.
func (p *untilDonePixels) readRow(y int) {
	if p.ctx.Err() != nil {
		panic(errStopped)
	}
	p.at.Y = y
	switch from := p.Image.(type) {
	case *image.YCbCr: // a JPEG
		for i := range p.row {
			p.row[i] = colourOf(from, p.at.X+i, y)
		}
		return
	case *image.NRGBA: // a PNG, whose alpha was dropped
		pixels := from.Pix[from.PixOffset(p.at.X, y):]
		for i := range p.row {
			rgb := pixels[4*i : 4*i+3 : 4*i+3]
			p.row[i] = color.RGBA64{R: uint16(rgb[0]) * 0x101, G: uint16(rgb[1]) * 0x101, B: uint16(rgb[2]) * 0x101, A: math.MaxUint16}
		}
		return
	}

	from, ok := p.Image.(image.RGBA64Image)
	for i := range p.row {
		if ok {
			p.row[i] = from.RGBA64At(p.at.X+i, y)
		} else {
			r, g, b, a := p.At(p.at.X+i, y).RGBA()
			p.row[i] = color.RGBA64{R: uint16(r), G: uint16(g), B: uint16(b), A: uint16(a)}
		}
	}
}

// colourOf is RGBA64At of a JPEG's picture, which has its pixels as the scaler's own code for this type does.
func colourOf(p *image.YCbCr, x, y int) color.RGBA64 {
	at := p.COffset(x, y)
	luma, blue, red := int32(p.Y[p.YOffset(x, y)])*0x10101, int32(p.Cb[at])-128, int32(p.Cr[at])-128
	bound := func(v int32) uint16 { return uint16(min(max(v>>8, 0), math.MaxUint16)) }
	return color.RGBA64{R: bound(luma + 91881*red), G: bound(luma - 22554*blue - 46802*red), B: bound(luma + 116130*blue), A: math.MaxUint16}
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
