package dispatch

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"downbeat.dev/bench/usage"
)

// Point is the cost at one size. Time is virtual, so the growth does not depend on the machine's speed.
type Point struct {
	Setting
	NsPerReq float64 // CPU time
	MiB      float64 // resident memory of the engine and its requests
	Batch    float64 // mean size
}

// Growth measures 10 to 10,000 models with 10,000 GPUs and 20 M r/s, and 8 to 10,000 GPUs with ten models at half of
// the GPUs' capacity. Batches are full in both.
func Growth(ctx context.Context, progress func(string)) (models, gpus []Point, err error) {
	for _, m := range []int{10, 100, 1000, 10000} {
		p, err := measurePoint(ctx, Setting{Models: m, GPUs: 10000, Cores: 1}, progress)
		if err != nil {
			return nil, nil, err
		}
		models = append(models, p)
	}
	for _, g := range []int{8, 64, 512, 4096, 10000} {
		p, err := measurePoint(ctx, Setting{Models: 10, GPUs: g, Cores: 1}, progress)
		if err != nil {
			return nil, nil, err
		}
		gpus = append(gpus, p)
	}
	return models, gpus, nil
}

func measurePoint(ctx context.Context, set Setting, progress func(string)) (Point, error) {
	p := Point{Setting: set}
	if err := ctx.Err(); err != nil {
		return p, err
	}

	// Memory is measured as a difference, so free the memory of earlier points first.
	debug.FreeOSMemory()
	before := residentBytes()
	v := &virtual{now: 1}
	r, err := newRig(set, v)
	if err != nil {
		return p, err
	}
	defer r.closeRig()

	rate := min(20e6, 0.5*r.set.fullRate())
	const requests = 4e6
	span := time.Duration(requests / rate * 1e9)

	// The first pass touches all memory, and its cost does not count.
	r.stepVirtual(v, rate, span)
	p.NsPerReq = math.Inf(1)

	for range 3 { // the least of three: the rest is due to other processes' use of caches
		r.resetCounts(false)
		start := usage.ProcessorTime()
		r.stepVirtual(v, rate, span)
		c := r.cores[0]
		p.NsPerReq = min(p.NsPerReq, float64(usage.ProcessorTime()-start)/float64(c.sent))
		p.Batch = float64(c.served) / float64(max(1, c.batches))
	}

	p.MiB = float64(residentBytes()-before) / (1 << 20)
	progress(fmt.Sprintf("%6d models %6d gpus: %6.1f ns/request %7.1f MiB batch %.1f", set.Models, set.GPUs, p.NsPerReq, p.MiB, p.Batch))
	return p, nil
}

// residentBytes returns the process's resident bytes; 0 if /proc does not report them.
func residentBytes() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// WriteGrowthCSV prints the points.
func WriteGrowthCSV(w io.Writer, series ...[]Point) error {
	if _, err := fmt.Fprintln(w, "models,gpus,ns_per_request,resident_mib,batch_mean"); err != nil {
		return err
	}
	for _, s := range series {
		for _, p := range s {
			if _, err := fmt.Fprintf(w, "%d,%d,%.1f,%.1f,%.1f\n", p.Models, p.GPUs, p.NsPerReq, p.MiB, p.Batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// WriteGrowthSVG draws ns per request over models and over GPUs, both logarithmic.
func WriteGrowthSVG(w io.Writer, models, gpus []Point) error {
	const width, height, left, bottom, top = 640, 360, 60, 320, 30
	most := 0.0
	for _, p := range append(append([]Point(nil), models...), gpus...) {
		most = max(most, p.NsPerReq)
	}

	most = math.Ceil(most/20) * 20
	x := func(n int) float64 { return left + (width-left-20)*math.Log10(float64(n))/4.1 }
	y := func(ns float64) float64 { return bottom - (bottom-top)*ns/most }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`, width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="18">CPU time per request, ns (no worse than logarithmic: no steeper than a straight line)</text>`, left)

	for ns := 0.0; ns <= most; ns += 20 {
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.0f" y2="%.0f" stroke="#ddd"/><text x="%d" y="%.0f" text-anchor="end">%.0f</text>`, left, width-20, y(ns), y(ns), left-6, y(ns)+4, ns)
	}
	for _, n := range []int{1, 10, 100, 1000, 10000} {
		fmt.Fprintf(&b, `<text x="%.0f" y="%d" text-anchor="middle">%d</text>`, x(n), bottom+16, n)
	}

	line := func(points []Point, size func(Point) int, color, label string, at int) {
		var path []string
		for _, p := range points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(size(p)), y(p.NsPerReq)))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, x(size(p)), y(p.NsPerReq), color)
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%d" y="%d" fill="%s">%s</text>`, strings.Join(path, " "), color, left+20, at, color, label)
	}

	line(models, func(p Point) int { return p.Models }, "#1f77b4", "models, at 10,000 GPUs", top+20)
	line(gpus, func(p Point) int { return p.GPUs }, "#d62728", "GPUs, at 10 models", top+38)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
