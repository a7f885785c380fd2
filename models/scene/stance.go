package scene

import "math"

// place maps an object's own coordinates (metres, u forward, v up, origin on the ground) to the
// street.
type place struct {
	x, y    float64 // where it stands
	metre   float64 // street units per metre at its depth
	squash  float64 // of lengths: how obliquely it is seen, 1 is from the side
	forward float64 // +1 faces right, −1 left
}

func (p place) mapPoint(u, v float64) point {
	return point{p.x + p.forward*u*p.metre*p.squash, p.y - v*p.metre}
}

// mapRect maps a rectangle with corners (u0, v0), (u1, v1).
func (p place) mapRect(u0, v0, u1, v1 float64) Rect {
	a, b := p.mapPoint(u0, v0), p.mapPoint(u1, v1)
	return Rect{min(a.x, b.x), min(a.y, b.y), max(a.x, b.x), max(a.y, b.y)}
}

func (p place) mapPoints(uv ...float64) []point {
	pts := make([]point, 0, 8)
	for i := 0; i+1 < len(uv); i += 2 {
		pts = append(pts, p.mapPoint(uv[i], uv[i+1]))
	}
	return pts
}

// walkLimb walks from a joint by a length in a direction: angle 0 hangs down, positive swings forward.
func (p place) walkLimb(from point, length, angle float64) point {
	return point{from.x + p.forward*math.Sin(angle)*length*p.metre, from.y + math.Cos(angle)*length*p.metre}
}

// look holds the differences between objects of a kind.
type look struct {
	body, second, dark rgb
	skin               rgb
	phase              float64 // of a stride or of pedals, radians
	size               float64 // about 1
	shape              float64 // 0 to 1: proportions within the kind
	detail             uint32  // bits for optional parts
}

// bodyAngles are a person's joint angles in radians; index 0 is the near limb, 1 the far one.
type bodyAngles struct {
	lean       float64
	hip, knee  [2]float64 // knee: how far the shin swings back from the thigh
	arm, elbow [2]float64 // elbow: how far the forearm swings forward from the upper arm
	hipHeight  float64    // metres above the ground
	hipForward float64    // metres ahead of where the person stands
}

const (
	thigh    = 0.42
	shin     = 0.43
	upperArm = 0.30
	foreArm  = 0.27
	torso    = 0.56
)

// poseBody poses a person of 1.75 m.
func poseBody(a Activity, l look) bodyAngles {
	s, c := math.Sin(l.phase), math.Cos(l.phase)
	b := bodyAngles{hipHeight: thigh + shin}

	// The phase moves the limbs; near and far side swing in opposition.
	switch a {
	case Walking:
		swing := 0.42 + 0.1*l.shape
		b.lean = 0.04
		b.hip = [2]float64{swing * s, -swing * s}
		b.knee = [2]float64{0.1 + 0.5*max(0, c)*max(0, -s+0.4), 0.1 + 0.5*max(0, -c)*max(0, s+0.4)}
		b.arm = [2]float64{-0.45 * s, 0.45 * s}
		b.elbow = [2]float64{0.2, 0.2}
		// Hips sink as the legs spread.
		b.hipHeight = (thigh + shin) * math.Cos(swing*s*0.8)
	case Running:
		b.lean = 0.22 + 0.1*l.shape
		b.hip = [2]float64{0.15 + 0.85*s, 0.15 - 0.85*s}
		b.knee = [2]float64{0.5 - 0.8*s + 0.5*c*c, 0.5 + 0.8*s + 0.5*c*c}
		b.arm = [2]float64{-0.8 * s, 0.8 * s}
		b.elbow = [2]float64{1.5, 1.5}
		b.hipHeight = 0.82
	case Sitting:
		b.lean = -0.05 + 0.2*l.shape
		b.hip = [2]float64{1.5, 1.45}
		b.knee = [2]float64{1.45 + 0.2*s, 1.5}
		b.arm = [2]float64{0.4, 0.5}
		b.elbow = [2]float64{0.8, 0.7}
		b.hipHeight = shin + 0.02
	case Cycling:
		b.lean = 0.55 + 0.25*l.shape
		b.hip = [2]float64{0.95 + 0.35*s, 0.95 - 0.35*s}
		b.knee = [2]float64{1.05 + 0.35*s + 0.25*c, 1.05 - 0.35*s - 0.25*c}
		b.arm = [2]float64{1.0, 0.95}
		b.elbow = [2]float64{0.25, 0.25}
		b.hipHeight, b.hipForward = 0.95, -0.18 // on a saddle, which is behind the pedals
	case Waving:
		b.hip = [2]float64{0.06, -0.06}
		b.arm = [2]float64{2.6 + 0.3*s, 0.05}
		b.elbow = [2]float64{0.3 * c, 0.1}
		if l.detail&1 != 0 {
			b.arm[1], b.elbow[1] = 2.5-0.3*s, 0.3*c
		}
	default:
		b.hip = [2]float64{0.05 + 0.04*s, -0.05}
		b.arm = [2]float64{0.08 * s, -0.08 * c}
		b.elbow = [2]float64{0.1, 0.15}
		if l.detail&3 == 3 { // hands in the pockets
			b.arm, b.elbow = [2]float64{-0.4, -0.35}, [2]float64{0.9, 0.9}
		}
	}

	return b
}

// drawPerson draws a person. For Cycling, its own function draws the bicycle first.
func (c *canvas) drawPerson(p place, a Activity, l look) {
	// A figure is about equally wide from every side, so do not foreshorten it.
	p.squash = 1
	p.metre *= l.size

	if a == Sitting {
		c.drawBench(p, l)
	}
	c.drawFigure(p, poseBody(a, l), l)
}

// drawFigure draws a body in the given pose.
func (c *canvas) drawFigure(p place, b bodyAngles, l look) {
	hip := p.mapPoint(b.hipForward, b.hipHeight)
	neck := p.walkLimb(hip, torso, math.Pi-b.lean)

	head := p.walkLimb(neck, 0.17, math.Pi-b.lean*0.6)
	m := p.metre
	wide := 0.9 + 0.3*l.shape

	limbs := func(i int, shade float32) {
		knee := p.walkLimb(hip, thigh, b.hip[i])
		foot := p.walkLimb(knee, shin, b.hip[i]-b.knee[i])
		c.paintCapsule(hip, knee, 0.085*m*wide, l.second.scaleBy(shade))
		c.paintCapsule(knee, foot, 0.065*m*wide, l.second.scaleBy(shade))

		toe := point{foot.x + p.forward*0.12*m, foot.y}
		c.paintCapsule(foot, toe, 0.045*m, l.dark)
	}

	arm := func(i int, shade float32) {
		shoulder := p.walkLimb(neck, 0.06, -b.lean)
		elbow := p.walkLimb(shoulder, upperArm, b.arm[i])
		hand := p.walkLimb(elbow, foreArm, b.arm[i]+b.elbow[i])
		c.paintCapsule(shoulder, elbow, 0.06*m*wide, l.body.scaleBy(shade))

		fore := l.body.scaleBy(shade)
		if l.detail&4 != 0 { // short sleeves
			fore = l.skin.scaleBy(shade)
		}
		c.paintCapsule(elbow, hand, 0.048*m, fore)
		c.paintEllipse(hand.x, hand.y, 0.05*m, 0.05*m, l.skin, 1)
	}

	// Draw the far limbs first and darker, then the body, then the near limbs.
	limbs(1, 0.7)
	arm(1, 0.7)
	limbs(0, 1)
	c.paintCapsule(hip, neck, 0.135*m*wide, l.body)
	c.paintEllipse(head.x, head.y, 0.105*m, 0.125*m, l.skin, 1)
	c.paintEllipse(head.x-p.forward*0.02*m, head.y-0.05*m, 0.11*m, 0.08*m, l.dark, 1)
	arm(0, 0.88)
}

func (c *canvas) drawBench(p place, l look) {
	wood := rgb{0.45, 0.3, 0.18}
	if l.detail&8 != 0 {
		wood = rgb{0.5, 0.52, 0.55}
	}

	c.paintRect(p.mapRect(-0.45, 0.36, 0.3, 0.44), wood, 1)
	if l.detail&16 != 0 {
		c.paintRect(p.mapRect(-0.45, 0.44, -0.38, 0.9), wood.scaleBy(0.9), 1)
	}

	c.paintRect(p.mapRect(-0.42, 0, -0.36, 0.38), wood.scaleBy(0.7), 1)
	c.paintRect(p.mapRect(0.2, 0, 0.26, 0.38), wood.scaleBy(0.7), 1)
}
