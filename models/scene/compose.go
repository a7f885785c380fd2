package scene

import (
	"math"
	"math/rand/v2"
	"sort"
)

// Scene is a street at one moment, without pixels. y runs from 0 (top) to 1 (bottom), x from 0 to Aspect. A composed
// scene is immutable.
type Scene struct {
	Aspect  float64 // width over height
	Cond    Conditions
	horizon float64
	seed    uint64 // of rain, snow and sensor noise
	items   []item // far to near
	houses  []house
	front   []bush
	ground  rgb
	sky     [2]rgb // zenith, horizon
}

// item is one object.
type item struct {
	kind     Kind
	activity Activity
	place    place
	look     look
	box      Rect // in street coordinates, unclipped
}

type house struct {
	rect   Rect
	col    rgb
	rows   int
	cols   int
	lit    uint64 // a bit per window
	isTree bool
}

// bush is an object in the foreground: kind 0 is a pole, 1 a bin, 2 a bush.
type bush struct {
	kind int
	x, y float64
	size float64
	col  rgb
}

// Limits of the street's geometry.
const (
	metreFar  = 0.060 // street units per metre at the horizon
	metreNear = 0.170 // and at the lower border
	itemsMax  = 40
)

func (s *Scene) pixelsPerMetre(y float64) float64 {
	return metreFar + (metreNear-metreFar)*max(y-s.horizon, 0)/(1-s.horizon)
}

// Compose draws a random street with about c.Density objects, more or less hidden by one another and by c.Occlusion's
// poles and bushes.
func Compose(r *rand.Rand, c Conditions, aspect float64) *Scene {
	s := newScene(r, c, aspect)

	for n := drawPoisson(r, c.Density); n > 0 && len(s.items) < itemsMax; n-- {
		kind := Kind(DrawWeighted(r, c.Kinds[:]))
		// If twelve tries find no place in a full street, leave the object out.
		for try := range 12 { // look for a free place, further and further away
			it := s.newItem(r, kind, drawActivity(r, kind, c))
			it.settleAt(r, s, 0.12+0.84*r.Float64()*(1-0.06*float64(try)))
			if s.isFree(it.box) {
				s.items = append(s.items, it)
				break
			}
		}
	}

	s.sortByDepth()

	for n := drawPoisson(r, 3*c.Occlusion); n > 0; n-- {
		s.front = append(s.front, newBush(r, r.Float64()*aspect, 0.9+0.15*r.Float64(), 0.5+r.Float64()))
	}
	return s
}

// ComposeOne draws a street around one object of the given kind (and activity, for a Person), with few others. An
// obstacle stands in front of it with probability c.Occlusion. The object is Objects()[i] for the returned i.
func ComposeOne(r *rand.Rand, c Conditions, kind Kind, activity Activity) (s *Scene, i int) {
	s = newScene(r, c, 1)
	main := s.newItem(r, kind, activity)
	main.settleAt(r, s, 0.2+0.7*r.Float64())
	s.items = append(s.items, main)

	for range r.IntN(3) {
		kind := Kind(DrawWeighted(r, c.Kinds[:]))
		it := s.newItem(r, kind, drawActivity(r, kind, c))
		it.settleAt(r, s, 0.1+0.6*r.Float64())
		if s.isFree(it.box) {
			s.items = append(s.items, it)
		}
	}

	s.sortByDepth()

	// Sorting has moved the main object.
	for i = range s.items {
		if s.items[i].box == main.box {
			break
		}
	}

	// The obstacle hides a part of the main object.
	if r.Float64() < c.Occlusion {
		b := main.box
		x := b.X0 + (b.X1-b.X0)*r.Float64()
		size := 0.25 + 0.35*r.Float64()
		h := newBush(r, x, b.Y1+0.02, size*(b.Y1-b.Y0)/0.3)
		s.front = append(s.front, h)
	}
	return s, i
}

// Objects returns the kinds, activities and boxes (in street coordinates) of all objects, far to near.
func (s *Scene) Objects() []Object {
	out := make([]Object, len(s.items))
	for i, it := range s.items {
		out[i] = Object{Kind: it.kind, Activity: it.activity, Box: it.box, Visible: 1, Inside: 1}
	}
	return out
}

// Around returns a view of the given aspect around object i. The object fills 1/margin of the view; dx and dy shift
// it by shares of the view's size.
func (s *Scene) Around(i int, aspect, margin, dx, dy float64) Rect {
	return Around(s.items[i].box, aspect, margin, dx, dy)
}

// Around widens a box to a view of the given aspect (width over height), margin times as large, shifted by dx and dy,
// shares of the view's size.
func Around(b Rect, aspect, margin, dx, dy float64) Rect {
	h := max(b.Y1-b.Y0, (b.X1-b.X0)/aspect) * margin
	w := h * aspect
	cx, cy := (b.X0+b.X1)/2+dx*w, (b.Y0+b.Y1)/2+dy*h
	return Rect{cx - w/2, cy - h/2, cx + w/2, cy + h/2}
}

func newScene(r *rand.Rand, c Conditions, aspect float64) *Scene {
	s := &Scene{Aspect: aspect, Cond: c, horizon: 0.32 + 0.1*r.Float64(), seed: r.Uint64()}

	gray := 0.3 + 0.15*float32(r.Float64())
	s.ground = rgb{gray, gray, gray * 1.04}
	s.sky = [2]rgb{{0.42, 0.6, 0.88}, {0.78, 0.86, 0.94}}
	if r.IntN(3) == 0 { // overcast
		s.sky = [2]rgb{{0.62, 0.65, 0.69}, {0.76, 0.78, 0.8}}
	}

	// Houses and trees stand along the horizon, some overlapping, some apart.
	for x := -0.1; x < aspect; {
		w := 0.15 + 0.3*r.Float64()
		h := house{col: drabColour(r), rows: 2 + r.IntN(3), cols: 2 + r.IntN(3), lit: r.Uint64()}
		top := s.horizon * (0.1 + 0.8*r.Float64())
		h.isTree = r.IntN(4) == 0
		h.rect = Rect{x, top, x + w, s.horizon + 0.04}
		s.houses = append(s.houses, h)
		x += w * (0.9 + 0.4*r.Float64())
	}
	return s
}

func (s *Scene) newItem(r *rand.Rand, kind Kind, activity Activity) item {
	l := look{body: paintColour(r), second: paintColour(r), dark: drabColour(r).scaleBy(0.35), phase: 2 * math.Pi * r.Float64(),
		size: 0.92 + 0.16*r.Float64(), shape: r.Float64(), detail: r.Uint32()}

	tone := 0.35 + 0.6*float32(r.Float64())
	l.skin = rgb{0.95 * tone, 0.76 * tone, 0.62 * tone}
	if kind == Person && r.IntN(4) == 0 { // a child, or a short person
		l.size *= 0.75
	}

	p := place{squash: 0.72 + 0.28*math.Sqrt(r.Float64()), forward: 1}
	if r.IntN(2) == 0 {
		p.forward = -1
	}
	return item{kind: kind, activity: activity, place: p, look: l}
}

// settleAt puts the item at the depth (0: horizon, 1: lower border), or further away if it would be wider than the
// street.
func (it *item) settleAt(r *rand.Rand, s *Scene, depth float64) {
	for range 8 {
		it.place.y = s.horizon + depth*(1-s.horizon)
		it.place.metre = s.pixelsPerMetre(it.place.y)
		it.place.x = 0
		it.measureBox()
		if it.box.X1-it.box.X0 < 0.7*s.Aspect || depth < 0.15 {
			break
		}

		// Further away it is smaller.
		depth *= 0.75
	}

	half := (it.box.X1 - it.box.X0) / 2
	span := s.Aspect - 1.2*half // up to a fifth of it may lie outside
	it.place.x = 0.6*half + span*r.Float64()
	it.measureBox()
}

func (it *item) measureBox() {
	// A canvas without pixels only measures.
	var c canvas
	c.scale = 1
	c.beginObject(1)
	c.drawItem(it)
	it.box = c.extent
}

// isFree reports whether a new box leaves enough of the other boxes and of itself visible.
func (s *Scene) isFree(b Rect) bool {
	for _, o := range s.items {
		in := b.clipTo(o.box).area()
		if in > (0.1+0.4*s.Cond.Occlusion)*min(b.area(), o.box.area()) {
			return false
		}
	}
	return true
}

// sortByDepth sorts the items into painting order.
func (s *Scene) sortByDepth() {
	sort.SliceStable(s.items, func(i, j int) bool { return s.items[i].place.y < s.items[j].place.y })
}

func drawActivity(r *rand.Rand, k Kind, c Conditions) Activity {
	if k == Bicycle {
		return Cycling
	}

	// Only the rider of a bicycle has the activity cycling.
	w := c.Activities
	w[Cycling] = 0
	return Activity(DrawWeighted(r, w[:]))
}

func newBush(r *rand.Rand, x, y, size float64) bush {
	b := bush{kind: r.IntN(3), x: x, y: y, size: size, col: drabColour(r).scaleBy(0.7)}
	if b.kind == 2 {
		g := 0.25 + 0.25*float32(r.Float64())
		b.col = rgb{g * 0.55, g, g * 0.4}
	}
	return b
}

func paintColour(r *rand.Rand) rgb {
	if r.IntN(3) == 0 { // white to black
		g := 0.08 + 0.84*float32(r.Float64())
		return rgb{g, g, g}
	}

	c := rgb{float32(r.Float64()), float32(r.Float64()), float32(r.Float64())}
	most := max(c[0], c[1], c[2], 0.05)
	return c.scaleBy((0.35 + 0.6*float32(r.Float64())) / most)
}

func drabColour(r *rand.Rand) rgb {
	g := 0.35 + 0.4*float32(r.Float64())
	return rgb{g * (0.9 + 0.25*float32(r.Float64())), g * (0.9 + 0.1*float32(r.Float64())), g * (0.75 + 0.2*float32(r.Float64()))}
}

// drawPoisson draws a count of the given mean, below about 20.
func drawPoisson(r *rand.Rand, mean float64) int {
	// Knuth's method: uniform numbers are multiplied until they fall below e^-mean.
	n, p, limit := 0, r.Float64(), math.Exp(-mean)
	for p > limit && n < itemsMax {
		n++
		p *= r.Float64()
	}
	return n
}
