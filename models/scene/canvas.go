package scene

import "math"

// Rect is a rectangle; X grows to the right, Y downwards.
type Rect struct{ X0, Y0, X1, Y1 float64 }

func (r Rect) area() float64 { return max(r.X1-r.X0, 0) * max(r.Y1-r.Y0, 0) }

func (r Rect) clipTo(o Rect) Rect {
	return Rect{max(r.X0, o.X0), max(r.Y0, o.Y0), min(r.X1, o.X1), min(r.Y1, o.Y1)}
}

// IoU returns the intersection over union of two rectangles.
func (r Rect) IoU(o Rect) float64 {
	in := r.clipTo(o).area()
	if in == 0 {
		return 0
	}
	return in / (r.area() + o.area() - in)
}

type point struct{ x, y float64 }

// rgb is a colour, 0 to 1 per channel, treated as linear.
type rgb [3]float32

func (c rgb) mixWith(d rgb, w float32) rgb {
	return rgb{c[0] + (d[0]-c[0])*w, c[1] + (d[1]-c[1])*w, c[2] + (d[2]-c[2])*w}
}

func (c rgb) scaleBy(f float32) rgb { return rgb{c[0] * f, c[1] * f, c[2] * f} }

// canvas paints antialiased shapes, given in street coordinates, onto pixels. Without pixels it only measures.
type canvas struct {
	w, h    int
	pix     []float32 // w·h·3
	owner   []uint8   // id of the object that painted the pixel last; 0: scenery
	view    Rect
	scale   float64 // pixels per street unit
	id      uint8
	extent  Rect // bounds of everything painted since begin, in street coordinates, unclipped
	ambient rgb  // the light by which all colours are multiplied at the end
	tint    func(rgb) rgb
}

// beginObject starts an object: it sets the id for owner and clears the extent.
func (c *canvas) beginObject(id uint8) {
	c.id = id
	c.extent = Rect{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
}

// paintShape blends col over the pixels within bounds. The signed distance (in pixels, negative inside) gives each
// pixel's coverage.
func (c *canvas) paintShape(bounds Rect, col rgb, alpha float32, distance func(x, y float64) float64) {
	// Grow the extent even without pixels: such a canvas only measures.
	c.growExtent(bounds)
	x0, y0, x1, y1 := c.pixelRange(bounds)
	if x0 >= x1 || y0 >= y1 {
		return
	}

	if c.tint != nil {
		col = c.tint(col)
	}

	inv := 1 / c.scale
	for y := y0; y < y1; y++ {
		wy := c.view.Y0 + (float64(y)+0.5)*inv
		for x := x0; x < x1; x++ {
			// A pixel on the border is covered by the part that lies inside.
			cover := 0.5 - distance(c.view.X0+(float64(x)+0.5)*inv, wy)*c.scale
			if cover <= 0 {
				continue
			}
			c.blendPixel(y*c.w+x, col, alpha*float32(min(cover, 1)))
		}
	}
}

func (c *canvas) growExtent(b Rect) {
	c.extent = Rect{min(c.extent.X0, b.X0), min(c.extent.Y0, b.Y0), max(c.extent.X1, b.X1), max(c.extent.Y1, b.Y1)}
}

// pixelRange returns the pixel range that bounds may touch.
func (c *canvas) pixelRange(b Rect) (x0, y0, x1, y1 int) {
	x0 = max(int((b.X0-c.view.X0)*c.scale-1), 0)
	y0 = max(int((b.Y0-c.view.Y0)*c.scale-1), 0)
	x1 = min(int((b.X1-c.view.X0)*c.scale+2), c.w)
	y1 = min(int((b.Y1-c.view.Y0)*c.scale+2), c.h)
	return x0, y0, x1, y1
}

func (c *canvas) blendPixel(i int, col rgb, a float32) {
	p := c.pix[i*3 : i*3+3 : i*3+3]
	p[0] += (col[0] - p[0]) * a
	p[1] += (col[1] - p[1]) * a
	p[2] += (col[2] - p[2]) * a

	// The object that covers most of a pixel owns it.
	if a > 0.5 {
		c.owner[i] = c.id
	}
}

// paintRect paints an upright rectangle.
func (c *canvas) paintRect(r Rect, col rgb, alpha float32) {
	cx, cy := (r.X0+r.X1)/2, (r.Y0+r.Y1)/2
	hx, hy := (r.X1-r.X0)/2, (r.Y1-r.Y0)/2
	c.paintShape(r, col, alpha, func(x, y float64) float64 {
		return max(math.Abs(x-cx)-hx, math.Abs(y-cy)-hy)
	})
}

// paintEllipse paints a filled ellipse.
func (c *canvas) paintEllipse(cx, cy, rx, ry float64, col rgb, alpha float32) {
	c.paintShape(Rect{cx - rx, cy - ry, cx + rx, cy + ry}, col, alpha, func(x, y float64) float64 {
		u, v := (x-cx)/rx, (y-cy)/ry
		return (math.Sqrt(u*u+v*v) - 1) * min(rx, ry)
	})
}

// paintRing paints a circle's line of the given half width.
func (c *canvas) paintRing(cx, cy, r, half float64, col rgb) {
	c.paintShape(Rect{cx - r - half, cy - r - half, cx + r + half, cy + r + half}, col, 1, func(x, y float64) float64 {
		return math.Abs(math.Sqrt((x-cx)*(x-cx)+(y-cy)*(y-cy))-r) - half
	})
}

// paintCapsule paints a thick line with round ends.
func (c *canvas) paintCapsule(a, b point, r float64, col rgb) {
	dx, dy := b.x-a.x, b.y-a.y
	inv := 1 / max(dx*dx+dy*dy, 1e-12)
	c.paintShape(Rect{min(a.x, b.x) - r, min(a.y, b.y) - r, max(a.x, b.x) + r, max(a.y, b.y) + r}, col, 1, func(x, y float64) float64 {
		// Nearest point of the line.
		t := min(max(((x-a.x)*dx+(y-a.y)*dy)*inv, 0), 1)
		ex, ey := x-a.x-t*dx, y-a.y-t*dy
		return math.Sqrt(ex*ex+ey*ey) - r
	})
}

// paintPolygon paints a convex polygon with corners in either orientation.
func (c *canvas) paintPolygon(pts []point, col rgb, alpha float32) {
	b := Rect{math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)}
	var turn float64
	var edges [12]struct{ x, y, nx, ny float64 }

	for i, p := range pts {
		q := pts[(i+1)%len(pts)]
		b = Rect{min(b.X0, p.x), min(b.Y0, p.y), max(b.X1, p.x), max(b.Y1, p.y)}
		turn += p.x*q.y - q.x*p.y
	}

	// Normals point outwards for both orientations.
	side := 1.0
	if turn < 0 {
		side = -1
	}

	for i, p := range pts {
		q := pts[(i+1)%len(pts)]
		dx, dy := q.x-p.x, q.y-p.y
		l := side / max(math.Sqrt(dx*dx+dy*dy), 1e-9)
		edges[i].x, edges[i].y, edges[i].nx, edges[i].ny = p.x, p.y, dy*l, -dx*l
	}

	// The distance to a convex polygon is the largest distance to any edge.
	n := len(pts)
	c.paintShape(b, col, alpha, func(x, y float64) float64 {
		d := math.Inf(-1)
		for i := range edges[:n] {
			e := &edges[i]
			d = max(d, (x-e.x)*e.nx+(y-e.y)*e.ny)
		}
		return d
	})
}
