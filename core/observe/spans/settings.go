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

// Rate is the share of traced calls. It is safe for concurrent use.
type Rate interface {
	Rate() float64
	SetRate(share float64)
}

// Settings implement Triton's trace settings extension. The collector belongs to the deployment, so only the number
// of traced calls can be changed: one of every trace_rate calls, and at the level OFF only calls whose callers trace
// them. Settings are safe for concurrent use.
type Settings struct {
	rate Rate // nil: tracing is off for good

	mu    sync.Mutex
	first float64 // the share at start
	share float64 // the share while the level is on; guarded by mu
	on    bool    // guarded by mu
}

// rateDefault is Triton's default: one of this many calls is traced.
const rateDefault = 1000

// NewSettings returns the settings that correspond to a rate's present value; nil: no tracing.
func NewSettings(rate Rate) *Settings {
	s := &Settings{rate: rate}
	if rate == nil {
		return s
	}
	s.first = rate.Rate()
	s.on, s.share = s.first > 0, s.first

	// If the level is turned on later without a rate, Triton's default applies.
	if !s.on {
		s.share = 1.0 / rateDefault
	}
	return s
}

// Tell returns the settings, each with its values as text.
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

// Change changes all given settings, or none and returns an error. A setting without values returns to its value at
// start.
func (s *Settings) Change(changes map[string][]string) error {
	now := s.Tell()
	s.mu.Lock()
	defer s.mu.Unlock()

	// Collect all changes first, so that an error leaves everything unchanged.
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
			// Accept a setting that is sent back unchanged.
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
		share = 0 // s.share stays for when the level is on again
	}
	s.rate.SetRate(share)
	return nil
}

// readLevel parses the values of trace_level; no values mean the level at start.
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

	// Without a collector, spans would be made for nobody.
	if on && s.rate == nil {
		return false, errors.New("trace setting trace_level: TIMESTAMPS: there is no collector: set the gateway's knob trace")
	}
	return on, nil
}

// readShare parses the values of trace_rate; no values mean the rate at start.
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
