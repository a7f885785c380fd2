package limits

import (
	"testing"
	"time"
)

// TestWhoIsNearerGivesUpFirst checks the order of the table for every batch.
func TestWhoIsNearerGivesUpFirst(t *testing.T) {
	for l := time.Microsecond; l < time.Hour; l *= 3 {
		if Backend(l) >= Device(l) || Backend(l)+time.Second > Engine(l) {
			t.Errorf("ℓ %v: backend %v, device %v, scheduler %v", l, Backend(l), Device(l), Engine(l))
		}
	}
	if Ahead >= Slots || Slots >= Orders {
		t.Errorf("depths %d, %d, %d", Ahead, Slots, Orders)
	}
}
