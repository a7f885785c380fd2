package spans

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Rate is the share of calls that are traced. Safe for concurrent use.
type Rate interface {
	Rate() float64
	SetRate(share float64)
}

// Settings are what Triton's trace settings extension tells and changes. Spans go to the deployment's collector, and what can
// be changed by call is how many calls are traced: of trace_rate calls one, and none at the level OFF but those whose callers
// trace them. Safe for concurrent use.
type Settings struct {
	rate Rate // nil: nothing is traced

	mu    sync.Mutex
	first float64 // the share at start
	share float64 // while the level is on; guarded by mu
	on    bool    // guarded by mu
}

// rateDefault is Triton's: of so many calls one is traced.
const rateDefault = 1000

// NewSettings returns the settings of a rate as it is now; nil: nothing is traced.
func NewSettings(rate Rate) *Settings {
	s := &Settings{rate: rate}
	if rate == nil {
		return s
	}
	s.first = rate.Rate()
	s.on, s.share = s.first > 0, s.first

	// Turned on later without a rate, the level has Triton's.
	if !s.on {
		s.share = 1.0 / rateDefault
	}
	return s
}

// Tell returns the settings, each as its values in text.
func (s *Settings) Tell() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()

	level, rate := "OFF", rateDefault
	if s.on {
		level = "TIMESTAMPS"
	}
	if s.share > 0 {
		rate = int(min(math.Round(1/s.share), math.MaxInt32))
	}
	return map[string][]string{"trace_level": {level}, "trace_rate": {strconv.Itoa(rate)}, "trace_count": {"-1"}, "log_frequency": {"0"},
		"trace_file": {""}, "trace_mode": {"opentelemetry"}}
}

// Change changes settings, all or, after an error, none. One without values becomes what it was at start.
func (s *Settings) Change(changes map[string][]string) error {
	now := s.Tell()
	s.mu.Lock()
	defer s.mu.Unlock()

	// Changes are put together first: after an error none of them holds.
	on, share := s.on, s.share
	var err error
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		values := changes[name]
		switch {
		case name == "trace_level":
			on, err = s.readLevel(values)
		case name == "trace_rate":
			share, err = s.readShare(values)
		case now[name] == nil:
			err = fmt.Errorf("trace setting %.40q: must be one of %s", name, strings.Join(slices.Sorted(maps.Keys(now)), ", "))
		case len(values) > 0 && !slices.Equal(values, now[name]):
			// Clients may send back what they were told, as it was.
			err = fmt.Errorf("trace setting %s: %.40q: cannot be changed; trace_level and trace_rate can", name, values)
		}
		if err != nil {
			return err
		}
	}

	s.on, s.share = on, share
	if s.rate == nil {
		return nil
	}
	if !on {
		share = 0 // s.share stays for when it is on again
	}
	s.rate.SetRate(share)
	return nil
}

// readLevel reads the values of trace_level; none mean that at start.
func (s *Settings) readLevel(values []string) (on bool, err error) {
	if len(values) == 0 {
		on = s.first > 0
	}
	for _, v := range values {
		switch v {
		case "TIMESTAMPS":
			on = true
		case "OFF":
		default:
			return false, fmt.Errorf("trace setting trace_level: %.40q: must be OFF or TIMESTAMPS; tensors are not traced", v)
		}
	}
	if on && s.rate == nil {
		return false, errors.New("trace setting trace_level: TIMESTAMPS: there is no collector: set the gateway's knob trace")
	}
	return on, nil
}

// readShare reads the values of trace_rate; none mean that at start.
func (s *Settings) readShare(values []string) (float64, error) {
	if len(values) == 0 {
		if s.first == 0 {
			return 1.0 / rateDefault, nil
		}
		return s.first, nil
	}
	n, err := strconv.ParseUint(values[0], 10, 31)
	if err != nil || n == 0 || len(values) != 1 {
		return 0, fmt.Errorf("trace setting trace_rate: %.40q: must be a whole number above 0: of so many calls one is traced", values)
	}
	return 1 / float64(n), nil
}
