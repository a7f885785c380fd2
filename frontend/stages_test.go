package frontend

import (
	"testing"
	"time"

	"downbeat.dev/core/wire"
)

// TestStagesAddUp shows that the stages of a request add up to its time and none is negative, whatever a backend
// reports.
func TestStagesAddUp(t *testing.T) {
	const ms = time.Millisecond
	c := new(Client)
	c.echo.Store(int64(2 * ms))
	told := wire.Stages{Fetch: uint32(3 * ms), Wait: uint32(2 * ms), Reply: uint32(1 * ms)}
	for _, x := range []struct {
		name    string
		call    call
		elapsed time.Duration
		want    Stages
	}{
		{"of before protocol 7", call{exec: int64(5 * ms)}, 20 * ms, Stages{}},
		{"all told", call{staged: true, stages: told, exec: int64(5 * ms)}, 20 * ms, Stages{Queue: 8 * ms, Fetch: 3 * ms, Wait: 2 * ms, Execute: 5 * ms, Reply: 2 * ms}},
		{"an echo longer than what is left", call{staged: true, stages: told, exec: int64(5 * ms)}, 11 * ms, Stages{Fetch: 3 * ms, Wait: 2 * ms, Execute: 5 * ms, Reply: 1 * ms}},
		{"more than there was", call{staged: true, stages: told, exec: int64(9 * ms)}, 10 * ms, Stages{Fetch: 1 * ms, Execute: 9 * ms}},
		{"nonsense", call{staged: true, exec: -1}, 3 * ms, Stages{Queue: 2 * ms, Reply: 1 * ms}},
	} {
		if got := c.stagesOf(&x.call, x.elapsed); got != x.want {
			t.Errorf("%s: %+v, want %+v", x.name, got, x.want)
		}
	}
}
