package cuda

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// clocked is a driver whose event is done at a set time, and that waits like a GPU's driver.
type clocked struct {
	driver
	done time.Time
	asks int
}

func (c *clocked) query(uint64) Code {
	c.asks++
	for end := time.Now().Add(time.Microsecond); time.Now().Before(end); { // the time of a query
	}
	if time.Now().Before(c.done) {
		return CodeNotReady
	}
	return CodeSuccess
}

func (c *clocked) pause(tries int, left time.Duration) bool {
	restBetween(tries, left)
	return true
}

func TestARestedWaitAsksSeldom(t *testing.T) {
	c := &clocked{}
	d := newDevice(c, 0)
	c.done = time.Now().Add(20 * time.Millisecond)
	if err := d.WaitAbout(20*time.Millisecond, time.Minute, &Event{}); err != nil {
		t.Fatal(err)
	}
	if time.Now().Before(c.done) {
		t.Error("the wait ended early")
	}
	if c.asks > 2*spins {
		t.Errorf("%d queries", c.asks)
	}
	c.done, c.asks = time.Now().Add(20*time.Millisecond), 0
	if err := d.WaitFor(time.Minute, &Event{}); err != nil { // without an expected duration
		t.Fatal(err)
	}
	if c.asks > 400 {
		t.Errorf("%d queries", c.asks)
	}
}

// BenchmarkWait measures the processor time of waiting for a batch of 2 ms, and how late the wait notices its end
// (docs/decisions/0065).
func BenchmarkWait(b *testing.B) {
	const batch = 2 * time.Millisecond
	for _, x := range []struct {
		name     string
		expected time.Duration
	}{{"expected", batch}, {"unknown", 0}} {
		b.Run(x.name, func(b *testing.B) {
			c := &clocked{}
			d := newDevice(c, 0)
			var late time.Duration
			before := used(b)
			for b.Loop() {
				c.done = time.Now().Add(batch)
				if err := d.WaitAbout(x.expected, time.Minute, &Event{}); err != nil {
					b.Fatal(err)
				}
				late += time.Since(c.done)
			}
			b.ReportMetric(float64((used(b)-before).Nanoseconds())/float64(b.N)/1e3, "cpu-µs/op")
			b.ReportMetric(float64(late.Nanoseconds())/float64(b.N)/1e3, "late-µs/op")
			b.ReportMetric(float64(c.asks)/float64(b.N), "queries/op")
		})
	}
}

func used(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
