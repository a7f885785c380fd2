package picture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"image"
	"image/color"
	"image/color/palette"
	stddraw "image/draw"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/image/draw"

	"downbeat.dev/core/model"
	"downbeat.dev/internal/memcost"
)

// plain returns an input of bytes, channels last, that takes pictures as they are.
func plain(height, width int64) *model.Tensor {
	return &model.Tensor{Name: "x", Datatype: model.Uint8, Shape: []int64{height, width, 3}, Picture: &model.Picture{Channels: model.ChannelsRGB, Scale: 1, Std: [3]float32{1, 1, 1}}}
}

// made decodes a file and returns its row.
func made(t testing.TB, file []byte, of *model.Tensor) []byte {
	t.Helper()
	if err := of.CheckPicture(); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadHeader(file); err != nil {
		t.Fatal(err)
	}
	row := make([]byte, of.RowBytes())
	if err := Decode(context.Background(), row, file, of); err != nil {
		t.Fatal(err)
	}
	return row
}

// colours returns the values of a picture, without its alpha.
func colours(p image.Image) (all []byte) {
	for y := p.Bounds().Min.Y; y < p.Bounds().Max.Y; y++ {
		for x := p.Bounds().Min.X; x < p.Bounds().Max.X; x++ {
			c := color.NRGBAModel.Convert(p.At(x, y)).(color.NRGBA)
			all = append(all, c.R, c.G, c.B)
		}
	}
	return all
}

// TestEveryKindOfFile shows that each kind of JPEG and PNG has the colours that it stores.
func TestEveryKindOfFile(t *testing.T) {
	size := image.Rect(0, 0, 6, 4)
	rgba := drawn(image.NewRGBA(size))
	gray := drawn(image.NewGray(size)).(*image.Gray)
	deep := drawn(image.NewNRGBA64(size)).(*image.NRGBA64)
	for i := 0; i < len(deep.Pix); i += 2 {
		deep.Pix[i+1] = 0xFE // the lower 8 bits are dropped, not rounded
	}
	faint := drawn(image.NewNRGBA(size)).(*image.NRGBA)
	for i := 3; i < len(faint.Pix); i += 4 {
		faint.Pix[i] = 1
	}
	solid := drawn(image.NewNRGBA(size))
	table := color.Palette{color.NRGBA{1, 2, 3, 0}, color.NRGBA{250, 130, 7, 100}, color.NRGBA{9, 8, 7, 255}}
	listed := image.NewPaletted(size, table)
	var ofTable []byte
	for i := range listed.Pix {
		listed.Pix[i] = uint8(i % 3)
		c := table[i%3].(color.NRGBA)
		ofTable = append(ofTable, c.R, c.G, c.B)
	}
	animated := rawPNG(6, 4, 8, 0, 0, append(pngChunk("acTL", []byte{0, 0, 0, 9, 0, 0, 0, 0}), pngChunk("fcTL", make([]byte, 26))...), slices.Concat(
		append([]byte{0}, gray.Pix[:6]...), append([]byte{0}, gray.Pix[6:12]...), append([]byte{0}, gray.Pix[12:18]...), append([]byte{0}, gray.Pix[18:]...)))

	for name, c := range map[string]struct {
		file []byte
		want []byte
	}{
		"PNG of RGB":           {asPNG(t, rgba), colours(rgba)},
		"PNG of gray":          {asPNG(t, gray), colours(gray)},
		"PNG of 16 bits":       {asPNG(t, deep), colours(deep)},
		"PNG almost invisible": {asPNG(t, faint), colours(solid)},
		"PNG with a palette":   {asPNG(t, listed), ofTable},
		"PNG interlaced":       {interlaced(6, 4, gray.Pix), colours(gray)},
		"PNG animated":         {animated, colours(gray)},
	} {
		if got := made(t, c.file, plain(4, 6)); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %v\nwant %v", name, got, c.want)
		}
	}

	for name, c := range map[string]struct {
		file []byte
		want []byte // of every pixel
	}{
		"JPEG of gray":        {flatJPEG(sofBaseline, 1, 77), []byte{77, 77, 77}},
		"JPEG of YCbCr":       {flatJPEG(sofBaseline, 1, 77, 128, 128), []byte{77, 77, 77}},
		"JPEG of colours":     {flatJPEG(sofBaseline, 1, 128, 128, 228), []byte{255, 56, 128}},
		"JPEG of CMYK":        {flatJPEG(sofBaseline, 1, 200, 100, 50, 255), []byte{200, 100, 50}},
		"JPEG of CMYK, black": {flatJPEG(sofBaseline, 1, 200, 100, 50, 0), []byte{0, 0, 0}},
		"JPEG, progressive":   {flatJPEG(sofProgressive, 1, 10, 128, 128), []byte{10, 10, 10}},
	} {
		got := made(t, c.file, plain(8, 8))
		for i := range got {
			if d := int(got[i]) - int(c.want[i%3]); d < -1 || d > 1 {
				t.Errorf("%s: value %d is %d, want about %v", name, i, got[i], c.want)
				break
			}
		}
	}

	file := asJPEG(t, drawn(image.NewRGBA(image.Rect(0, 0, 8, 8))))
	if got, want := made(t, file, plain(8, 8)), colours(drawn(image.NewRGBA(image.Rect(0, 0, 8, 8)))); len(got) != len(want) {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
}

// TestDeclarations shows where a picture's values lie in the tensor, and what becomes of them.
func TestDeclarations(t *testing.T) {
	file := asPNG(t, drawn(image.NewNRGBA(image.Rect(0, 0, 5, 3))))
	rgb := made(t, file, plain(3, 5))
	at := func(y, x, c int) float64 { return float64(rgb[(y*5+x)*3+c]) }

	first := model.Tensor{Name: "x", Datatype: model.FP32, Shape: []int64{3, 3, 5}, Picture: &model.Picture{ChannelsFirst: true, Channels: model.ChannelsBGR,
		Scale: 1. / 255, Mean: [3]float32{0.406, 0.456, 0.485}, Std: [3]float32{0.225, 0.224, 0.229}}}
	got := made(t, file, &first)
	for c := range 3 {
		for y := range 3 {
			for x := range 5 {
				p := first.Picture
				want := (at(y, x, 2-c)*float64(p.Scale) - float64(p.Mean[c])) / float64(p.Std[c])
				if v := math.Float32frombits(binary.LittleEndian.Uint32(got[4*((c*3+y)*5+x):])); v != float32(want) {
					t.Fatalf("channel %d, row %d, column %d: %v, want %v", c, y, x, v, want)
				}
			}
		}
	}

	one := &model.Tensor{Name: "x", Datatype: model.Uint8, Shape: []int64{3, 5, 1}, Picture: &model.Picture{Channels: model.ChannelsGray, Scale: 1, Std: [3]float32{1, 1, 1}}}
	for i, v := range made(t, file, one) {
		if want := color.GrayModel.Convert(color.RGBA{rgb[3*i], rgb[3*i+1], rgb[3*i+2], 255}).(color.Gray).Y; max(v, want)-min(v, want) > 1 {
			t.Errorf("gray %d: %d, want %d", i, v, want)
		}
	}
}

// TestSizes shows that a picture of another size is averaged, and that a shorter side cuts out the centre.
func TestSizes(t *testing.T) {
	// Stripes of 0 and 200 of one pixel each: half of them must not vanish.
	stripes := image.NewGray(image.Rect(0, 0, 64, 64))
	for i := range stripes.Pix {
		stripes.Pix[i] = uint8(i % 2 * 200)
	}
	for i, v := range made(t, asPNG(t, stripes), plain(8, 8)) {
		if v < 85 || v > 115 {
			t.Fatalf("value %d of averaged stripes is %d, want about 100", i, v)
		}
	}

	// Left and right are black; only the white centre is in the middle.
	wide := image.NewGray(image.Rect(0, 0, 300, 100))
	for i := range wide.Pix {
		if x := i % 300; x >= 105 && x < 195 {
			wide.Pix[i] = 255
		}
	}
	cut := plain(32, 32)
	cut.Picture.ShorterSide = 40
	if got := made(t, asPNG(t, wide), cut); slices.Min(got) != 255 {
		t.Errorf("the centre has %d, want 255 only", slices.Min(got))
	}
	cut.Picture.ShorterSide = 0
	if got := made(t, asPNG(t, wide), cut); slices.Min(got) != 0 || slices.Max(got) != 255 {
		t.Errorf("a stretched picture has values from %d to %d", slices.Min(got), slices.Max(got))
	}

	for name, size := range map[string]image.Rectangle{"a row": image.Rect(0, 0, 5000, 1), "a column": image.Rect(0, 0, 1, 5000), "a pixel": image.Rect(0, 0, 1, 1)} {
		for _, side := range []uint32{0, 256} {
			cut.Picture.ShorterSide = side
			p := image.NewGray(size)
			for i := range p.Pix {
				p.Pix[i] = 33
			}
			if got := made(t, asPNG(t, p), cut); slices.Min(got) != 33 || slices.Max(got) != 33 {
				t.Errorf("%s, shorter side %d: values from %d to %d, want 33", name, side, slices.Min(got), slices.Max(got))
			}
		}
	}
}

// TestBadFiles shows that each is refused with its reason, most of them by the header.
func TestBadFiles(t *testing.T) {
	good, photo := asPNG(t, drawn(image.NewNRGBA(image.Rect(0, 0, 16, 16)))), asJPEG(t, drawn(image.NewNRGBA(image.Rect(0, 0, 16, 16))))
	corrupt := slices.Clone(good)
	corrupt[len(corrupt)-20] ^= 0x55
	for name, c := range map[string]struct {
		file   []byte
		want   string
		header bool
	}{
		"nothing":              {nil, "0 bytes that begin with", true},
		"a GIF":                {[]byte("GIF89a\x01\x00\x01\x00"), `begin with "GIF89a`, true},
		"a WebP":               {[]byte("RIFF\x00\x00\x00\x00WEBPVP8 "), "neither a JPEG nor a PNG", true},
		"numbers":              {make([]byte, 768), "neither a JPEG nor a PNG", true},
		"a PNG cut in front":   {good[:20], "EOF", true},
		"a PNG cut behind":     {good[:len(good)-30], "not enough pixel data", false},
		"a PNG that is wrong":  {corrupt, "png: invalid format", false},
		"a PNG without pixels": {rawPNG(0, 5, 8, 0, 0, nil, nil), "non-positive dimension", true},
		"a huge PNG":           {rawPNG(1<<16, 1<<16, 8, 0, 0, nil, nil), "65536 × 65536 pixels: over the limit: must be at most 33554432 in all", true},
		"a long PNG":           {rawPNG(1<<30, 1, 8, 0, 0, nil, nil), "must be at most 33554432", true},
		"a PNG of few rows":    {rawPNG(100, 100, 8, 2, 0, nil, make([]byte, 301)), "not enough pixel data", false},
		"a JPEG cut in front":  {photo[:30], "EOF", true},
		"a JPEG cut behind":    {photo[:len(photo)-20], "short Huffman data", false},
		"a JPEG of many scans": {flatJPEG(sofBaseline, ScansMax+1, 1), "JPEG of 101 scans: over the limit: must be at most 100", true},
	} {
		_, err := ReadHeader(c.file)
		if (err != nil) != c.header {
			t.Errorf("%s: the header: %v", name, err)
		}
		if err == nil {
			err = Decode(context.Background(), make([]byte, 768), c.file, plain(16, 16))
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want …%s…", name, err, c.want)
		}
	}
}

// TestMemoryIsKnownBefore shows that decoding takes no more than the header told.
func TestMemoryIsKnownBefore(t *testing.T) {
	size := image.Rect(0, 0, 700, 500)
	for name, file := range map[string][]byte{
		"PNG":            asPNG(t, drawn(image.NewNRGBA(size))),
		"PNG of 16 bits": asPNG(t, drawn(image.NewNRGBA64(size))),
		"interlaced":     interlaced(700, 500, make([]byte, 700*500)),
		"JPEG":           asJPEG(t, drawn(image.NewRGBA(size))),
		"gray JPEG":      asJPEG(t, drawn(image.NewGray(size))),
		"tiny":           flatJPEG(sofProgressive, 1, 1, 2, 3),
	} {
		for _, to := range []*model.Tensor{plain(224, 224), plain(500, 700)} {
			h, err := ReadHeader(file)
			if err != nil {
				t.Fatal(err)
			}
			row := make([]byte, to.RowBytes())
			took := memcost.Allocated(func() { err = Decode(context.Background(), row, file, to) })
			if most := uint64(h.Memory(to)); err != nil || took > most {
				t.Errorf("%s to %v: %d bytes taken, %d told; %v", name, to.Shape, took, most, err)
			}
		}
	}
}

// TestDecodingEndsWithItsContext shows that a decoder stops in the middle of a file.
func TestDecodingEndsWithItsContext(t *testing.T) {
	file := asPNG(t, drawn(image.NewNRGBA(image.Rect(0, 0, 3000, 3000))))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := Decode(ctx, make([]byte, 768), file, plain(16, 16))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// FuzzDecode shows that no file makes the decoder panic or take more memory than its header told.
func FuzzDecode(f *testing.F) {
	small := image.Rect(0, 0, 9, 7)
	for _, file := range [][]byte{asPNG(f, drawn(image.NewNRGBA(small))), asPNG(f, drawn(image.NewGray16(small))), asJPEG(f, drawn(image.NewRGBA(small))),
		interlaced(9, 7, make([]byte, 63)), flatJPEG(sofProgressive, 2, 5, 6, 7), flatJPEG(sofBaseline, 1, 5, 6, 7, 8)} {
		f.Add(file, uint8(0))
	}
	f.Fuzz(func(t *testing.T, file []byte, side uint8) {
		to := plain(12, 10)
		if to.Picture.ShorterSide = uint32(side); side < 12 {
			to.Picture.ShorterSide = 0
		}
		h, err := ReadHeader(file)
		if err != nil || int64(h.Width)*int64(h.Height) > 1<<18 {
			return
		}
		row := make([]byte, to.RowBytes())
		took := memcost.Allocated(func() { _ = Decode(context.Background(), row, file, to) })
		if most := uint64(h.Memory(to)); took > most {
			t.Errorf("%d × %d: %d bytes taken, %d told", h.Width, h.Height, took, most)
		}
	})
}

// afterRows is a context that ends when it was asked a number of times.
type afterRows struct {
	context.Context
	left int
}

func (c *afterRows) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// decodedPictures are pictures of all types that decoders return, with random colours, and one of another type.
func decodedPictures(rng *rand.Rand, width, height int) map[string]image.Image {
	area := image.Rect(0, 0, width, height)
	all := map[string]image.Image{"gray": image.NewGray(area), "gray of 16 bits": image.NewGray16(area), "nrgba": image.NewNRGBA(area), "nrgba of 16 bits": image.NewNRGBA64(area),
		"rgba": image.NewRGBA(area), "rgba of 16 bits": image.NewRGBA64(area), "cmyk": image.NewCMYK(area), "palette": image.NewPaletted(area, palette.WebSafe)}
	for name, ratio := range map[string]image.YCbCrSubsampleRatio{"444": image.YCbCrSubsampleRatio444, "422": image.YCbCrSubsampleRatio422, "420": image.YCbCrSubsampleRatio420,
		"440": image.YCbCrSubsampleRatio440, "411": image.YCbCrSubsampleRatio411, "410": image.YCbCrSubsampleRatio410} {
		y := image.NewYCbCr(area, ratio)
		for _, plane := range [][]byte{y.Y, y.Cb, y.Cr} {
			for i := range plane {
				plane[i] = byte(rng.Uint32())
			}
		}
		all["ycbcr "+name] = y
	}
	for _, p := range all {
		to, ok := p.(stddraw.Image)
		for i := range width * height {
			if ok {
				to.Set(i%width, i/width, color.NRGBA{byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), 0xFF})
			}
		}
	}
	return all
}

// TestScalingEndsAtTheDeadline: a picture takes up to seconds to scale. It must not keep its decoder from other calls when its
// own has ended, whatever its type.
func TestScalingEndsAtTheDeadline(t *testing.T) {
	for name, p := range decodedPictures(rand.New(rand.NewPCG(1, 1)), 100, 50) {
		ctx := &afterRows{t.Context(), 10}
		if err := scalePicture(ctx, image.NewRGBA(image.Rect(0, 0, 10, 10)), p, plain(10, 10)); !errors.Is(err, context.Canceled) || ctx.left > -2 {
			t.Errorf("%s: %v, want that the context is done; asked %d times", name, err, 10-ctx.left)
		}
	}
}

// TestScalingIsTheScalers: reading a picture row by row changes no value of what the scaler makes of it by itself, smaller or
// larger, in part or as a whole.
func TestScalingIsTheScalers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		width, height, to := 1+rng.IntN(200), 1+rng.IntN(200), image.Rect(0, 0, 1+rng.IntN(100), 1+rng.IntN(100))
		for name, p := range decodedPictures(rng, width, height) {
			x, y := rng.IntN(width), rng.IntN(height)
			part := image.Rect(x, y, x+1+rng.IntN(width-x), y+1+rng.IntN(height-y))
			want, got := image.NewRGBA(to), image.NewRGBA(to)
			draw.BiLinear.Scale(want, to, p, part, draw.Src, nil)
			draw.BiLinear.Scale(got, to, newUntilDonePixels(t.Context(), p, part), part, draw.Src, nil)
			if !bytes.Equal(got.Pix, want.Pix) {
				t.Errorf("round %d: %s: %v of %d × %d to %v has other values", round, name, part, width, height, to)
			}
		}
	}
}

// BenchmarkScale scales a photo of 12 megapixels to a model's input, from the types of JPEG and PNG: by the scaler alone, and
// so that it ends with its call.
func BenchmarkScale(b *testing.B) {
	from, to := image.Rect(0, 0, 4000, 3000), image.NewRGBA(image.Rect(0, 0, 224, 224))
	for name, p := range map[string]image.Image{"jpeg": image.NewYCbCr(from, image.YCbCrSubsampleRatio420), "png": image.NewNRGBA(from), "png_rgba": image.NewRGBA(from)} {
		b.Run(name+"/alone", func(b *testing.B) {
			for b.Loop() {
				draw.BiLinear.Scale(to, to.Rect, p, from, draw.Src, nil)
			}
		})
		b.Run(name+"/until_done", func(b *testing.B) {
			for b.Loop() {
				draw.BiLinear.Scale(to, to.Rect, newUntilDonePixels(b.Context(), p, from), from, draw.Src, nil)
			}
		})
	}
}
