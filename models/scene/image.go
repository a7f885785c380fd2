package scene

import (
	"bufio"
	"image"
	"image/color"
	"image/png"
	"io"
)

// Image is a picture of W×H pixels, three bytes each (red, green, blue), row by row from the top: a UINT8 tensor of
// shape [H W 3]. It implements image.Image.
type Image struct {
	W, H int
	Pix  []byte // len W·H·3
}

// NewImage makes a black image.
func NewImage(w, h int) *Image { return &Image{W: w, H: h, Pix: make([]byte, w*h*3)} }

// ColorModel implements image.Image.
func (m *Image) ColorModel() color.Model { return color.RGBAModel }

// Bounds implements image.Image.
func (m *Image) Bounds() image.Rectangle { return image.Rect(0, 0, m.W, m.H) }

// At implements image.Image.
func (m *Image) At(x, y int) color.Color {
	if x < 0 || y < 0 || x >= m.W || y >= m.H {
		return color.RGBA{}
	}
	p := m.Pix[(y*m.W+x)*3:]
	return color.RGBA{p[0], p[1], p[2], 255}
}

// WritePNG encodes m.
func (m *Image) WritePNG(w io.Writer) error {
	b := bufio.NewWriter(w)
	if err := png.Encode(b, m); err != nil {
		return err
	}
	return b.Flush()
}

// Resample copies the part of src within view (in src's pixels) into m, bilinearly. Beyond src it repeats the border.
func (m *Image) Resample(src *Image, view Rect) {
	sx, sy := (view.X1-view.X0)/float64(m.W), (view.Y1-view.Y0)/float64(m.H)
	for y := range m.H {
		// Pixel centres lie at half coordinates.
		fy := view.Y0 + (float64(y)+0.5)*sy - 0.5
		y0, wy := splitCoordinate(fy, src.H)
		for x := range m.W {
			x0, wx := splitCoordinate(view.X0+(float64(x)+0.5)*sx-0.5, src.W)
			x1, y1 := min(x0+1, src.W-1), min(y0+1, src.H-1)
			a, b := src.Pix[(y0*src.W+x0)*3:], src.Pix[(y0*src.W+x1)*3:]
			c, d := src.Pix[(y1*src.W+x0)*3:], src.Pix[(y1*src.W+x1)*3:]

			out := m.Pix[(y*m.W+x)*3:]
			for i := range 3 {
				top := float64(a[i])*(1-wx) + float64(b[i])*wx
				low := float64(c[i])*(1-wx) + float64(d[i])*wx
				out[i] = byte(top*(1-wy) + low*wy + 0.5)
			}
		}
	}
}

// splitCoordinate clamps a coordinate into [0, n-1] and returns its whole and fractional parts.
func splitCoordinate(f float64, n int) (int, float64) {
	f = min(max(f, 0), float64(n-1))
	return int(f), f - float64(int(f))
}

// FromImage converts any image to one of w×h pixels.
func FromImage(src image.Image, w, h int) *Image {
	b := src.Bounds()
	full := NewImage(b.Dx(), b.Dy())
	for y := range full.H {
		for x := range full.W {
			// RGBA returns 16 bits per channel.
			r, g, bl, _ := src.At(b.Min.X+x, b.Min.Y+y).RGBA()
			p := full.Pix[(y*full.W+x)*3:]
			p[0], p[1], p[2] = byte(r>>8), byte(g>>8), byte(bl>>8)
		}
	}

	if full.W == w && full.H == h || full.W == 0 || full.H == 0 {
		return full
	}

	m := NewImage(w, h)
	m.Resample(full, Rect{0, 0, float64(full.W), float64(full.H)})
	return m
}
