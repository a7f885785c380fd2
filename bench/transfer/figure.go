package transfer

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
)

// Figure 12 of Symphony: the tail of an incast, by provider. The paper's RDMA (56 Gb/s InfiniBand, eight servers, 150
// KB each) has a median of about 24 µs and 33 µs at the 99.99th percentile; its TCP's 99.99th percentile is 12 times
// its median (§5.5).

var tail = []struct {
	name string
	of   func(Row) (ours, reference int64)
}{
	{"50", func(r Row) (int64, int64) { return r.P50, r.RefP50 }},
	{"99", func(r Row) (int64, int64) { return r.P99, r.RefP99 }},
	{"99.9", func(r Row) (int64, int64) { return r.P999, r.RefP999 }},
	{"99.99", func(r Row) (int64, int64) { return r.P9999, r.RefP9999 }},
}

// WriteCSV prints provider, op, percentile and latencies in ns, one line per percentile.
func WriteCSV(w io.Writer, rows []Row) error {
	c := csv.NewWriter(w)
	c.Write([]string{"provider", "op", "bytes", "peers", "percentile", "ns", "reference", "reference_ns"})
	for _, r := range rows {
		for _, t := range tail {
			ours, ref := t.of(r)
			c.Write([]string{r.Provider, r.Op, fmt.Sprint(r.Bytes), fmt.Sprint(r.Peers), t.name, fmt.Sprint(ours), r.Reference, fmt.Sprint(ref)})
		}
	}
	c.Flush()
	return c.Error()
}

const (
	figureWide, figureHigh = 640, 400
	figureLeft, figureLow  = 70, 340
)

// WriteFigure draws the incast rows: latency (logarithmic) over percentile, references dashed.
func WriteFigure(w io.Writer, rows []Row) error {
	low, high := math.Inf(1), 0.0
	for _, r := range rows {
		for _, t := range tail {
			ours, ref := t.of(r)
			for _, v := range []int64{ours, ref} {
				if r.Op == "incast" && v > 0 {
					low, high = min(low, float64(v)), max(high, float64(v))
				}
			}
		}
	}

	if high == 0 {
		return fmt.Errorf("no incast to draw")
	}

	// Whole powers of ten at both ends give the logarithmic axis round numbers.
	low, high = math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))

	y := func(ns int64) float64 {
		return figureLow - (math.Log10(float64(ns))-low)/max(1, high-low)*(figureLow-40)
	}
	x := func(i int) int { return figureLeft + 40 + i*140 }

	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", figureWide, figureHigh)
	fmt.Fprintf(w, `<text x="%d" y="20">Incast latency by percentile (Symphony, figure 12)</text>`+"\n", figureLeft)
	for d := low; d <= high; d++ {
		at := y(int64(math.Pow(10, d)))
		fmt.Fprintf(w, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="5" y="%.1f">%g µs</text>`+"\n",
			figureLeft, figureWide-10, at, at, at+4, math.Pow(10, d-3))
	}

	for i, t := range tail {
		fmt.Fprintf(w, `<text x="%d" y="%d">p%s</text>`+"\n", x(i)-12, figureLow+20, t.name)
	}

	colours := []string{"#0b6e4f", "#c1440e", "#1f4e9e", "#7b2d8b"}
	line := 0
	for _, r := range rows {
		if r.Op != "incast" {
			continue
		}

		colour := colours[line%len(colours)]
		fmt.Fprintf(w, `<text x="%d" y="%d" fill="%s">%s (dashed: %s)</text>`+"\n", figureLeft+line*180, figureLow+45, colour, r.Provider, r.Reference)

		for _, reference := range []bool{false, true} {
			drawCurve(w, r, reference, colour, x, y)
		}
		line++
	}

	_, err := fmt.Fprintln(w, "</svg>")
	return err
}

// drawCurve draws one row's latencies, or its reference's dashed.
func drawCurve(w io.Writer, r Row, reference bool, colour string, x func(i int) int, y func(ns int64) float64) {
	points := ""
	for i, t := range tail {
		v, ref := t.of(r)
		if reference {
			v = ref
		}
		if v > 0 {
			points += fmt.Sprintf("%d,%.1f ", x(i), y(v))
		}
	}

	dash := ""
	if reference {
		dash = ` stroke-dasharray="4 4"`
	}
	fmt.Fprintf(w, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`+"\n", points, colour, dash)
}
