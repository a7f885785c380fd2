package pace

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) *Timer {
	t.Helper()
	timer, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { timer.Close() })
	return timer
}

func TestWaitIsNeverEarly(t *testing.T) {
	timer := open(t)
	for _, d := range []time.Duration{-time.Second, 0, time.Microsecond, Margin, 2 * Margin, 3 * time.Millisecond} {
		until := time.Now().Add(d)
		if !timer.Wait(until) {
			t.Fatalf("Wait(now%+v) was interrupted", d)
		}
		if early := time.Until(until); early > 0 {
			t.Errorf("Wait(now%+v) returned %v early", d, early)
		}
	}
}

func TestInterruptEndsAWait(t *testing.T) {
	timer := open(t)
	done := make(chan bool)
	go func() { done <- timer.Wait(time.Now().Add(time.Hour)) }()
	timer.Interrupt()
	if <-done {
		t.Error("an interrupted Wait returned true")
	}
	if timer.Wait(time.Now().Add(time.Hour)) {
		t.Error("a Wait after Interrupt returned true")
	}
}

func TestCloseEndsAWait(t *testing.T) {
	timer := open(t)
	done := make(chan bool)
	go func() { done <- timer.Wait(time.Now().Add(time.Hour)) }()
	time.Sleep(5 * time.Millisecond)
	timer.Close()
	if <-done {
		t.Error("a closed Wait returned true")
	}
}

func TestWaitAllocatesNothing(t *testing.T) {
	timer := open(t)
	if n := testing.AllocsPerRun(20, func() { timer.Wait(time.Now().Add(2 * Margin)) }); n != 0 {
		t.Errorf("%v allocations per wait, want 0", n)
	}
}
