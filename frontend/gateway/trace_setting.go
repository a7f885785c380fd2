package gateway

import (
	"context"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"downbeat.dev/core/guard"
	"downbeat.dev/frontend/gateway/oip"
)

// The trace settings extension. Spans go to the deployment's collector, and what can be changed by call is how many calls
// are traced: of trace_rate calls one, and none at the level OFF but those whose callers trace them.

// TraceRate is the share of calls that are traced. Safe for concurrent use.
type TraceRate interface {
	Rate() float64
	SetRate(share float64)
}

// traceSettings are the levels that the extension tells and changes.
type traceSettings struct {
	rate TraceRate // nil: nothing is traced

	mu    sync.Mutex
	begun bool    // what follows is set; guarded by mu
	first float64 // the share at start; guarded by mu
	share float64 // while the level is on; guarded by mu
	on    bool    // guarded by mu
}

// noteStart notes the settings at start. t.mu is held.
func (t *traceSettings) noteStart() {
	if t.begun || t.rate == nil {
		return
	}
	t.begun, t.first = true, t.rate.Rate()
	t.on, t.share = t.first > 0, t.first

	// Turned on later without a rate, the level has Triton's.
	if !t.on {
		t.share = 1.0 / traceRateDefault
	}
}

// traceRateDefault is Triton's: of so many calls one is traced.
const traceRateDefault = 1000

// tellSettings returns the settings, each as its values in text.
func (t *traceSettings) tellSettings() map[string][]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteStart()

	level, rate := "OFF", traceRateDefault
	if t.on {
		level = "TIMESTAMPS"
	}
	if t.share > 0 {
		rate = int(min(math.Round(1/t.share), math.MaxInt32))
	}
	return map[string][]string{"trace_level": {level}, "trace_rate": {strconv.Itoa(rate)}, "trace_count": {"-1"}, "log_frequency": {"0"},
		"trace_file": {""}, "trace_mode": {"opentelemetry"}}
}

// changeSettings changes settings, all or, after a fault, none. One without values becomes what it was at start.
func (t *traceSettings) changeSettings(changes map[string][]string) *fault {
	now := t.tellSettings()
	t.mu.Lock()
	defer t.mu.Unlock()

	// Changes are put together first: after a fault none of them holds.
	on, share := t.on, t.share
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		values := changes[name]
		switch {
		case name == "trace_level":
			level, f := traceLevel(values, t.first > 0)
			if f != nil {
				return f
			}
			if level && t.rate == nil {
				return invalidFault("trace setting trace_level: TIMESTAMPS: there is no collector: set the gateway's knob trace")
			}
			on = level

		case name == "trace_rate" && len(values) == 0:
			if share = t.first; share == 0 {
				share = 1.0 / traceRateDefault
			}
		case name == "trace_rate":
			n, err := strconv.ParseUint(values[0], 10, 31)
			if err != nil || n == 0 || len(values) != 1 {
				return invalidFault("trace setting trace_rate: %.40q: must be a whole number above 0: of so many calls one is traced", values)
			}
			share = 1 / float64(n)

		case now[name] == nil:
			return invalidFault("trace setting %.40q: must be one of %s", name, strings.Join(slices.Sorted(maps.Keys(now)), ", "))
		case len(values) > 0 && !slices.Equal(values, now[name]):
			// Clients may send back what they were told, as it was.
			return invalidFault("trace setting %s: %.40q: cannot be changed; trace_level and trace_rate can", name, values)
		}
	}

	t.on, t.share = on, share
	if t.rate == nil {
		return nil
	}
	if !on {
		share = 0 // t.share stays for when it is on again
	}
	t.rate.SetRate(share)
	return nil
}

// traceLevel reads the values of trace_level; none mean that at start.
func traceLevel(values []string, first bool) (on bool, f *fault) {
	if len(values) == 0 {
		return first, nil
	}
	for _, v := range values {
		switch v {
		case "TIMESTAMPS":
			on = true
		case "OFF":
		default:
			return false, invalidFault("trace setting trace_level: %.40q: must be OFF or TIMESTAMPS; tensors are not traced", v)
		}
	}
	return on, nil
}

// traceRoutes registers the calls.
func (g *Gateway) traceRoutes(mux *http.ServeMux) {
	for _, method := range []string{"GET", "POST"} {
		mux.HandleFunc(method+" /v2/trace/setting", g.restTraceSetting)
		mux.HandleFunc(method+" /v2/models/{model}/trace/setting", g.restTraceSetting)
	}
}

// isTraceSetting tells whether a path is of the trace settings.
func isTraceSetting(path string) bool { return strings.HasSuffix(path, "/trace/setting") }

// setTraces answers both protocols: with the settings after the changes, if there are any.
func (g *Gateway) setTraces(ctx context.Context, name string, changes map[string][]string) (map[string][]string, *fault) {
	if name != "" {
		if _, f := g.resolveModel(ctx, name, ""); f != nil {
			return nil, f
		}

		// Models have no settings of their own.
		if len(changes) > 0 {
			return nil, invalidFault("trace settings of model %.40q: cannot be changed: all models have those of /v2/trace/setting", name)
		}
	}
	if f := g.traces.changeSettings(changes); f != nil {
		return nil, f
	}
	return g.traces.tellSettings(), nil
}

func (g *Gateway) restTraceSetting(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, loggingBodyMax))
	if err != nil {
		writeFault(w, bodyFault(err, loggingBodyMax))
		return
	}

	changes := map[string][]string{}
	if len(text) > 0 {
		s := &jsonScanner{text: text}
		s.eachField(func(key string) { changes[strings.Clone(key)] = s.settingValues() })
		if s.expectEnd(); s.err != nil {
			writeFault(w, invalidFault("body: %v", s.err))
			return
		}
	}

	settings, f := g.setTraces(r.Context(), r.PathValue("model"), changes)
	if f != nil {
		writeFault(w, f)
		return
	}

	// The level is a list, as in Triton; the others are one text each.
	all := map[string]any{}
	for name, values := range settings {
		all[name] = values[0]
	}
	all["trace_level"] = settings["trace_level"]
	guard.WriteJSON(w, http.StatusOK, all)
}

// settingValues reads a setting's values: one text or number, a list of texts, or null for none.
func (s *jsonScanner) settingValues() (values []string) {
	switch c := s.peekByte(); {
	case c == '[':
		s.eachElement(func() { values = append(values, strings.Clone(s.readString())) })
	case c == '"':
		values = []string{strings.Clone(s.readString())}
	case c == 'n':
		s.skipLiteral("null")
	default:
		values = []string{strconv.FormatInt(s.readInteger(), 10)}
	}
	return values
}

// TraceSetting tells the settings, and changes those that it is given.
func (s *grpcServer) TraceSetting(ctx context.Context, r *oip.TraceSettingRequest) (*oip.TraceSettingResponse, error) {
	changes := map[string][]string{}
	for name, v := range r.Settings {
		changes[name] = v.GetValue()
	}
	settings, f := s.g.setTraces(ctx, r.ModelName, changes)
	if f != nil {
		return nil, f.GRPCStatus().Err()
	}

	told := map[string]*oip.TraceSettingResponse_SettingValue{}
	for name, values := range settings {
		told[name] = &oip.TraceSettingResponse_SettingValue{Value: values}
	}
	return &oip.TraceSettingResponse{Settings: told}, nil
}
