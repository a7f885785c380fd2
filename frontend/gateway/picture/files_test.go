package picture

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math/bits"
	"testing"
)

// drawn returns a picture whose pixels all differ, in one of the types that decoders return.
func drawn(to interface {
	image.Image
	Set(x, y int, c color.Color)
}) image.Image {
	b := to.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			to.Set(x, y, color.NRGBA{uint8(40 * x), uint8(60 * y), uint8(x*y + 9), 0xFF})
		}
	}
	return to
}

func asPNG(t testing.TB, p image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func asJPEG(t testing.TB, p image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, p, &jpeg.Options{Quality: 100}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// pngChunk returns one chunk of a PNG.
func pngChunk(kind string, data []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(data)))
	b = append(append(b, kind...), data...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[4:]))
}

// rawPNG returns a PNG with a header of its own, more chunks, and rows as its pixels.
func rawPNG(width, height uint32, depth, kind, interlace byte, more, rows []byte) []byte {
	header := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, width), height)
	header = append(header, depth, kind, 0, 0, interlace)
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	z.Write(rows)
	z.Close()
	file := append([]byte(pngSignature), pngChunk("IHDR", header)...)
	file = append(append(file, more...), pngChunk("IDAT", packed.Bytes())...)
	return append(file, pngChunk("IEND", nil)...)
}

// interlaced returns a gray picture of values in Adam7's seven passes.
func interlaced(width, height int, values []byte) []byte {
	var rows []byte
	for _, pass := range [7][4]int{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}} {
		for y := pass[1]; y < height; y += pass[3] {
			if pass[0] < width {
				rows = append(rows, 0) // no filter
			}
			for x := pass[0]; x < width; x += pass[2] {
				rows = append(rows, values[y*width+x])
			}
		}
	}
	return rawPNG(uint32(width), uint32(height), 8, 0, 1, nil, rows)
}

// Markers of a JPEG's frame.
const (
	sofBaseline    = 0xC0
	sofProgressive = 0xC2
)

// flatJPEG returns a JPEG of one block of 8 × 8 pixels, whose components have one value each. Four components are CMYK
// in Adobe's form, which stores them inverted.
func flatJPEG(sof byte, scans int, components ...byte) []byte {
	segment := func(marker byte, data ...byte) []byte {
		return append([]byte{0xFF, marker, byte((len(data) + 2) >> 8), byte(len(data) + 2)}, data...)
	}
	file := []byte{0xFF, 0xD8}
	if len(components) == 4 {
		file = append(file, segment(0xEE, append([]byte("Adobe"), 0, 100, 0, 0, 0, 0, 0)...)...)
	}
	file = append(file, segment(0xDB, append([]byte{0}, bytes.Repeat([]byte{1}, 64)...)...)...)

	frame, scan := []byte{8, 0, 8, 0, 8, byte(len(components))}, []byte{byte(len(components))}
	for i := range components {
		frame, scan = append(frame, byte(i+1), 0x11, 0), append(scan, byte(i+1), 0)
	}
	last := byte(63)
	if sof == sofProgressive {
		last = 0 // of the block's 64 numbers only the mean
	}
	scan = append(scan, 0, last, 0)

	// The mean's table has 12 codes of 4 bits, the other one a single code of 1 bit, which ends the block.
	file = append(file, segment(sof, frame...)...)
	file = append(file, segment(0xC4, append(append([]byte{0, 0, 0, 0, 12}, make([]byte, 12)...), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)...)...)
	file = append(file, segment(0xC4, append(append([]byte{0x10, 1}, make([]byte, 15)...), 0)...)...)

	var data []byte
	var word uint64
	n := 0
	put := func(v, count int) {
		word, n = word<<count|uint64(v)&(1<<count-1), n+count
		for ; n >= 8; n -= 8 {
			b := byte(word >> (n - 8))
			if data = append(data, b); b == 0xFF {
				data = append(data, 0)
			}
		}
	}
	for _, c := range components {
		mean := 8 * (int(c) - 128)
		size := bits.Len(uint(max(mean, -mean)))
		put(size, 4)
		if mean < 0 {
			mean-- // a negative number is stored less one
		}
		put(mean, size)
		if sof != sofProgressive {
			put(0, 1)
		}
	}
	put(-1, 7) // fills the last byte
	for range scans {
		file = append(append(file, segment(0xDA, scan...)...), data...)
	}
	return append(file, 0xFF, 0xD9)
}
