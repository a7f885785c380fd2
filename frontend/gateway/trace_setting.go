package gateway

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"

	"downbeat.dev/core/guard"
	"downbeat.dev/frontend/gateway/oip"
)

// This file has the calls of the trace settings extension. core/observe/spans defines the settings.

// traceRoutes registers the calls.
func (g *Gateway) traceRoutes(mux *http.ServeMux) {
	for _, method := range []string{"GET", "POST"} {
		mux.HandleFunc(method+" /v2/trace/setting", g.restTraceSetting)
		mux.HandleFunc(method+" /v2/models/{model}/trace/setting", g.restTraceSetting)
	}
}

// isTraceSetting reports whether a path belongs to the trace settings.
func isTraceSetting(path string) bool { return strings.HasSuffix(path, "/trace/setting") }

// setTraces serves both protocols: it applies the changes, if any, and returns the settings.
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
	if err := g.traces.Change(changes); err != nil {
		return nil, invalidFault("%v", err)
	}
	return g.traces.Tell(), nil
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
		if f := s.finish(); f != nil {
			writeFault(w, f)
			return
		}
	}

	settings, f := g.setTraces(r.Context(), r.PathValue("model"), changes)
	if f != nil {
		writeFault(w, f)
		return
	}

	// The level is a list, as in Triton; each other setting is one text.
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

// TraceSetting changes the given settings and returns all.
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
