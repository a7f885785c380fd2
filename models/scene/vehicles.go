package scene

var (
	rubber = rgb{0.07, 0.07, 0.08}
	glass  = rgb{0.32, 0.42, 0.5}
	chrome = rgb{0.6, 0.62, 0.65}
)

// drawVehicle draws a vehicle, with its rider if it has one.
func (c *canvas) drawVehicle(p place, k Kind, l look) {
	p.metre *= l.size
	switch k {
	case Car:
		c.drawCar(p, l)
	case Van:
		c.drawVan(p, l)
	case Truck:
		c.drawTruck(p, l)
	case Bus:
		c.drawBus(p, l)
	case Bicycle:
		c.drawBicycle(p, l)
	case Motorcycle:
		c.drawMotorcycle(p, l)
	}
}

// drawWheel draws a wheel whose axle is at u.
func (c *canvas) drawWheel(p place, u, r float64) {
	q := p.mapPoint(u, r)

	rx := r * p.metre * (0.4 + 0.6*p.squash)
	c.paintEllipse(q.x, q.y, rx, r*p.metre, rubber, 1)
	c.paintEllipse(q.x, q.y, rx*0.5, r*p.metre*0.5, chrome, 1)
}

// drawLamps draws head and tail lamps at the ends u0 (rear) and u1 (front).
func (c *canvas) drawLamps(p place, u0, u1, v float64) {
	c.paintRect(p.mapRect(u1-0.16, v-0.08, u1, v+0.1), c.glowing(rgb{1, 0.95, 0.75}), 1)
	c.paintRect(p.mapRect(u0, v-0.06, u0+0.12, v+0.12), c.glowing(rgb{0.8, 0.1, 0.1}), 1)
}

func (c *canvas) drawCar(p place, l look) {
	long := 1.9 + 0.3*l.shape // half the length
	roof := 1.38 + 0.12*(1-l.shape)
	back := -1.25 // a saloon's rear window starts here
	if l.detail&1 != 0 {
		back = -long + 0.15 // a hatchback or estate
	}

	// Draw the upper body with its windows first: the lower body covers its edge.
	c.paintPolygon(p.mapPoints(back, 0.82, back+0.4, roof, 0.45, roof, 1.1, 0.82), l.body.scaleBy(0.92), 1)
	c.paintPolygon(p.mapPoints(back+0.22, 0.84, back+0.48, roof-0.1, -0.18, roof-0.1, -0.18, 0.84), glass, 1)
	c.paintPolygon(p.mapPoints(-0.08, 0.84, -0.08, roof-0.1, 0.4, roof-0.1, 0.92, 0.84), glass, 1)
	c.paintPolygon(p.mapPoints(-long, 0.4, -long+0.05, 0.86, 1.1, 0.88, long-0.12, 0.72, long, 0.4), l.body, 1)
	c.paintRect(p.mapRect(-long, 0.28, long, 0.44), l.body.scaleBy(0.55), 1)

	c.drawLamps(p, -long, long-0.05, 0.62)
	c.drawWheel(p, -long+0.72, 0.33)
	c.drawWheel(p, long-0.75, 0.33)
}

func (c *canvas) drawVan(p place, l look) {
	long := 2.2 + 0.25*l.shape
	roof := 1.95 + 0.25*l.shape

	c.paintPolygon(p.mapPoints(-long, 0.35, -long, roof, long-1.15, roof, long-0.55, 1.15, long, 1.0, long, 0.35), l.body, 1)
	c.paintPolygon(p.mapPoints(long-1.55, 1.2, long-1.55, roof-0.2, long-1.1, roof-0.2, long-0.66, 1.2), glass, 1)

	if l.detail&1 != 0 { // a people carrier has side windows
		c.paintRect(p.mapRect(-long+0.2, 1.2, -0.6, roof-0.2), glass, 1)
		c.paintRect(p.mapRect(-0.45, 1.2, long-1.7, roof-0.2), glass, 1)
	} else if l.detail&2 != 0 { // a tradesman's lettering
		c.paintRect(p.mapRect(-long+0.4, 1.15, long-2.2, 1.45), l.second, 1)
	}

	c.paintRect(p.mapRect(-long, 0.28, long, 0.42), l.body.scaleBy(0.5), 1)
	c.paintRect(p.mapRect(-0.02+long-2.0, 0.45, long-1.97, roof-0.1), l.body.scaleBy(0.7), 1)
	c.drawLamps(p, -long, long-0.02, 0.75)
	c.drawWheel(p, -long+0.75, 0.36)
	c.drawWheel(p, long-0.7, 0.36)
}

func (c *canvas) drawTruck(p place, l look) {
	long := 2.9 + 0.5*l.shape
	roof := 2.6 + 0.4*l.shape
	cab := long - 1.35

	switch {
	case l.detail&3 == 3: // a tipper with an open load
		c.paintPolygon(p.mapPoints(-long, 0.9, -long-0.05, 1.75, cab-0.15, 1.75, cab-0.25, 0.9), l.second, 1)
		c.paintEllipse(p.mapPoint(-0.9, 1.75).x, p.mapPoint(0, 1.75).y, 1.3*p.metre*p.squash, 0.35*p.metre, rgb{0.42, 0.36, 0.28}, 1)
	case l.detail&3 == 2: // a tank
		a, b := p.mapPoint(-long+0.6, 1.6), p.mapPoint(cab-0.8, 1.6)
		c.paintCapsule(a, b, 0.7*p.metre, l.second.mixWith(chrome, 0.6))
	default: // a box
		c.paintRect(p.mapRect(-long, 0.85, cab-0.2, roof), l.second, 1)
		c.paintRect(p.mapRect(-long, roof-0.12, cab-0.2, roof), l.second.scaleBy(0.8), 1)
		if l.detail&4 != 0 {
			c.paintRect(p.mapRect(-long+0.6, 1.4, cab-1.2, 2.0), l.body, 1)
		}
	}

	// The frame, the cab with its window, the lamps and the wheels are the same for every load.
	c.paintRect(p.mapRect(-long, 0.55, cab+0.2, 0.9), rgb{0.15, 0.15, 0.16}, 1)
	c.paintPolygon(p.mapPoints(cab, 0.45, cab, 2.25, long-0.3, 2.25, long, 1.4, long, 0.45), l.body, 1)
	c.paintPolygon(p.mapPoints(cab+0.35, 1.4, cab+0.35, 2.05, long-0.36, 2.05, long-0.1, 1.4), glass, 1)
	c.drawLamps(p, -long, long, 0.75)
	c.drawWheel(p, long-0.6, 0.46)
	c.drawWheel(p, -long+0.65, 0.46)
	c.drawWheel(p, -long+1.62, 0.46)
}

func (c *canvas) drawBus(p place, l look) {
	long := 3.6 + 0.6*l.shape
	roof := 2.8 + 0.2*l.shape

	c.paintPolygon(p.mapPoints(-long, 0.35, -long, roof, long-0.15, roof, long, roof-0.3, long, 0.35), l.body, 1)
	c.paintRect(p.mapRect(-long, 0.35, long, 0.62), l.second, 1)

	n := 5 + int(l.detail&1)
	step := (2*long - 1.3) / float64(n)
	for i := range n {
		u := -long + 0.2 + float64(i)*step
		c.paintRect(p.mapRect(u, 1.45, u+step-0.15, roof-0.35), glass, 1)
	}

	c.paintRect(p.mapRect(long-0.95, 0.45, long-0.35, roof-0.4), glass.scaleBy(0.85), 1) // the door
	c.paintRect(p.mapRect(long-0.2, 1.3, long-0.02, roof-0.45), glass, 1)

	if l.detail&2 != 0 {
		c.paintRect(p.mapRect(-long+0.6, roof-0.02, long-1, roof+0.18), l.body.scaleBy(0.8), 1) // cooling on the roof
	}

	c.drawLamps(p, -long, long, 0.8)
	c.drawWheel(p, -long+1.3, 0.47)
	c.drawWheel(p, long-1.7, 0.47)
}

func (c *canvas) drawBicycle(p place, l look) {
	const r = 0.34
	thin := 0.028 * p.metre
	rear, front := p.mapPoint(-0.52, r), p.mapPoint(0.52, r)

	c.paintRing(rear.x, rear.y, r*p.metre, thin, rubber)
	c.paintRing(front.x, front.y, r*p.metre, thin, rubber)

	crank, saddle, bar := p.mapPoint(-0.05, 0.32), p.mapPoint(-0.2, 0.88), p.mapPoint(0.38, 0.95)
	head := p.mapPoint(0.36, 0.8)
	for _, tube := range [][2]point{{rear, crank}, {crank, saddle}, {rear, saddle}, {crank, head}, {saddle, head}, {front, bar}} {
		c.paintCapsule(tube[0], tube[1], thin, l.second)
	}

	c.paintCapsule(bar, p.mapPoint(0.52, 1.0), thin, rubber)

	// The rider is a figure, which is not foreshortened.
	p.squash = 1
	look := l
	look.second = l.dark.mixWith(l.body, 0.25)
	c.drawFigure(p, poseBody(Cycling, l), look)
}

func (c *canvas) drawMotorcycle(p place, l look) {
	const r = 0.32
	for _, u := range []float64{-0.7, 0.72} {
		q := p.mapPoint(u, r)
		c.paintRing(q.x, q.y, (r-0.07)*p.metre, 0.075*p.metre, rubber)
	}

	c.paintCapsule(p.mapPoint(0.72, r), p.mapPoint(0.42, 1.0), 0.045*p.metre, chrome)
	c.paintPolygon(p.mapPoints(-0.45, 0.3, -0.3, 0.62, 0.3, 0.62, 0.4, 0.35, 0.2, 0.22), rgb{0.2, 0.2, 0.22}, 1)
	c.paintCapsule(p.mapPoint(-0.75, 0.78), p.mapPoint(-0.1, 0.74), 0.09*p.metre, rgb{0.12, 0.12, 0.13})
	c.paintCapsule(p.mapPoint(0.0, 0.82), p.mapPoint(0.35, 0.88), 0.14*p.metre, l.second)

	if l.detail&1 != 0 { // a fairing
		c.paintPolygon(p.mapPoints(0.3, 0.6, 0.45, 1.15, 0.62, 1.0, 0.66, 0.62), l.second, 1)
	}

	c.paintCapsule(p.mapPoint(-0.85, 0.4), p.mapPoint(-0.1, 0.36), 0.05*p.metre, chrome)
	c.paintRect(p.mapRect(0.52, 0.85, 0.62, 1.0), c.glowing(rgb{1, 0.95, 0.75}), 1)

	p.squash = 1
	c.drawRider(p, l)
}

// drawRider draws a motorcycle's rider: helmeted, seated, feet on the pegs.
func (c *canvas) drawRider(p place, l look) {
	m := p.metre
	hip := p.mapPoint(-0.25, 0.9)
	neck := p.walkLimb(hip, torso, 3.14-0.35-0.35*l.shape)
	knee := p.walkLimb(hip, thigh, 1.25)
	foot := p.walkLimb(knee, shin, -0.45)
	hand := p.mapPoint(0.42, 1.05)
	elbow := point{(neck.x+hand.x)/2 - p.forward*0.02*m, (neck.y+hand.y)/2 + 0.1*m}

	c.paintCapsule(hip, knee, 0.09*m, l.dark)
	c.paintCapsule(knee, foot, 0.07*m, l.dark)
	c.paintCapsule(hip, neck, 0.15*m, l.body)
	c.paintCapsule(neck, elbow, 0.06*m, l.body.scaleBy(0.85))
	c.paintCapsule(elbow, hand, 0.05*m, l.body.scaleBy(0.85))

	head := p.walkLimb(neck, 0.17, 3.14-0.2)
	c.paintEllipse(head.x, head.y, 0.15*m, 0.15*m, l.second, 1)
	c.paintEllipse(head.x+p.forward*0.07*m, head.y, 0.08*m, 0.06*m, rubber, 1)
}
