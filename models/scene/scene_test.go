package scene

import (
	"bytes"
	"image/png"
	"math"
	"reflect"
	"strings"
	"testing"
)

func draw(seed, n uint64, c Conditions, size int) (*Image, []Object) {
	m := NewImage(size, size)
	s := Compose(Seeded(seed, n), c, 1)
	return m, NewRenderer().Draw(s, s.Full(), m, nil)
}

func TestSameSeedSameBytes(t *testing.T) {
	r := NewRenderer() // used before: its buffers hold another scene
	for n := range uint64(20) {
		c := Mixed(Seeded(3, n))
		a, ta := draw(1, n, c, 64)
		b := NewImage(64, 64)
		s := Compose(Seeded(1, n), c, 1)
		tb := r.Draw(s, s.Full(), b, nil)
		if !bytes.Equal(a.Pix, b.Pix) || !reflect.DeepEqual(ta, tb) {
			t.Fatalf("image %d differs between two drawings", n)
		}
		if other, _ := draw(2, n, c, 64); bytes.Equal(a.Pix, other.Pix) {
			t.Fatalf("image %d is the same for another seed", n)
		}
	}
}

func TestTruthLiesWithinTheImage(t *testing.T) {
	seen := [KindCount]int{}
	for n := range uint64(300) {
		_, truth := draw(4, n, Mixed(Seeded(5, n)), 96)
		for _, o := range truth {
			b := o.Box
			if b.X0 < 0 || b.Y0 < 0 || b.X1 > 96 || b.Y1 > 96 || b.X0 >= b.X1 || b.Y0 >= b.Y1 {
				t.Fatalf("image %d: box %+v", n, b)
			}
			if o.Visible < 0 || o.Visible > 1 || o.Inside <= 0 || o.Inside > 1+1e-9 {
				t.Fatalf("image %d: %+v", n, o)
			}
			if o.Clear() {
				seen[o.Kind]++
			}
		}
	}
	for k, n := range seen {
		if n < 20 {
			t.Errorf("only %d clear objects of kind %v in 300 images", n, Kind(k))
		}
	}
}

// TestBoxesEncloseWhatIsPainted compares a scene with one object with the same scene without it.
func TestBoxesEncloseWhatIsPainted(t *testing.T) {
	c := Day()
	c.Noise, c.Occlusion = 0, 0
	r := NewRenderer()
	for k := range KindCount {
		for a := range ActivityCount {
			if (k == Person) == (a == Cycling) {
				continue
			}
			s, i := ComposeOne(Seeded(uint64(k), uint64(a)), c, k, a)
			s.items = s.items[i : i+1]
			with, without := NewImage(128, 128), NewImage(128, 128)
			truth := r.Draw(s, s.Full(), with, nil)
			id := r.c.owner
			var bounds = Rect{128, 128, 0, 0}
			for p, o := range id {
				if o == 1 {
					x, y := float64(p%128), float64(p/128)
					bounds = Rect{min(bounds.X0, x), min(bounds.Y0, y), max(bounds.X1, x+1), max(bounds.Y1, y+1)}
				}
			}
			s.items = nil
			r.Draw(s, s.Full(), without, nil)
			if bytes.Equal(with.Pix, without.Pix) || len(truth) != 1 {
				t.Fatalf("%v %v: nothing was drawn", k, a)
			}
			b := truth[0].Box
			if math.Abs(b.X0-bounds.X0) > 2 || math.Abs(b.Y0-bounds.Y0) > 2 || math.Abs(b.X1-bounds.X1) > 2 || math.Abs(b.Y1-bounds.Y1) > 2 {
				t.Errorf("%v %v: box %+v, painted %+v", k, a, b, bounds)
			}
		}
	}
}

func TestConditionsChangeThePicture(t *testing.T) {
	mean := func(c Conditions) float64 {
		m, _ := draw(7, 1, c, 48)
		var sum float64
		for _, p := range m.Pix {
			sum += float64(p)
		}
		return sum / float64(len(m.Pix))
	}
	day := mean(Day())
	if night := mean(Night()); night > 0.6*day {
		t.Errorf("night's mean brightness %.0f, day's %.0f", night, day)
	}
	for name, change := range map[string]func(*Conditions){
		"fog": func(c *Conditions) { c.Fog = 0.8 }, "rain": func(c *Conditions) { c.Rain = 1 }, "snow": func(c *Conditions) { c.Snow = 1 },
	} {
		c := Day()
		change(&c)
		a, _ := draw(7, 1, c, 48)
		b, _ := draw(7, 1, Day(), 48)
		if bytes.Equal(a.Pix, b.Pix) {
			t.Errorf("%s changes nothing", name)
		}
	}
}

func TestClassMixIsFollowed(t *testing.T) {
	c := Day()
	c.Density = 2 // so that nearly all find a place
	c.Kinds = [KindCount]float64{Bus: 3, Bicycle: 1}
	var count [KindCount]int
	for n := range uint64(300) {
		for _, o := range Compose(Seeded(8, n), c, 1).Objects() {
			count[o.Kind]++
		}
	}
	total := count[Bus] + count[Bicycle]
	if share := float64(count[Bus]) / float64(total); share < 0.55 || share > 0.85 || count[Car] > 0 {
		t.Errorf("kinds %v", count)
	}
}

func TestCheckNamesFieldAndRange(t *testing.T) {
	for want, change := range map[string]func(*Conditions){
		"light: 1.5: want 0 to 1":     func(c *Conditions) { c.Light = 1.5 },
		"fog: NaN: want 0 to 1":       func(c *Conditions) { c.Fog = math.NaN() },
		"noise: -1: want 0 to 0.3":    func(c *Conditions) { c.Noise = -1 },
		"kinds[2]: -1: want a weight": func(c *Conditions) { c.Kinds[2] = -1 },
		"activities: all 0":           func(c *Conditions) { c.Activities = [ActivityCount]float64{} },
	} {
		c := Day()
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want …%s…", err, want)
		}
	}
}

func TestPNGAndBack(t *testing.T) {
	m, _ := draw(1, 1, Day(), 40)
	var b bytes.Buffer
	if err := m.WritePNG(&b); err != nil {
		t.Fatal(err)
	}
	back, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	if got := FromImage(back, 40, 40); !bytes.Equal(got.Pix, m.Pix) {
		t.Error("the picture changed on its way through PNG")
	}
	if got := FromImage(back, 20, 10); got.W != 20 || got.H != 10 {
		t.Errorf("resized to %dx%d", got.W, got.H)
	}
}

func TestIoU(t *testing.T) {
	a := Rect{0, 0, 2, 2}
	for want, b := range map[float64]Rect{1: a, 0: {3, 3, 4, 4}, 1.0 / 7: {1, 1, 3, 3}} {
		if got := a.IoU(b); math.Abs(got-want) > 1e-12 {
			t.Errorf("IoU with %v: %v, want %v", b, got, want)
		}
	}
}

func BenchmarkStreet(b *testing.B) {
	r, m := NewRenderer(), NewImage(96, 96)
	for n := uint64(0); b.Loop(); n++ {
		g := Seeded(5, n)
		s := Compose(g, Mixed(g), 1)
		r.Draw(s, s.Full(), m, nil)
	}
}

func BenchmarkCrop(b *testing.B) {
	r, m := NewRenderer(), NewImage(48, 32)
	for n := uint64(0); b.Loop(); n++ {
		g := Seeded(5, n)
		s, i := ComposeOne(g, Mixed(g), Vehicle(int(n)%VehicleClasses), Standing)
		r.Draw(s, s.Around(i, 1.5, 1.2, 0, 0), m, nil)
	}
}
