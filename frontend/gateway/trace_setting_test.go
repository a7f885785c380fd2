package gateway

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"downbeat.dev/frontend/gateway/oip"
)

// share is a TraceRate.
type share float64

func (s *share) Rate() float64      { return float64(*s) }
func (s *share) SetRate(to float64) { *s = share(to) }

// TestConformanceTraceSettings: the trace settings extension, over REST.
func TestConformanceTraceSettings(t *testing.T) {
	rate := share(0.01)
	server, _ := rest(t, Options{TraceRate: &rate})
	for _, c := range []struct {
		path, body string // no body: the settings are read
		code       int
		want       string
		rate       float64
	}{
		{"/v2/trace/setting", "", 200, `"trace_level":["TIMESTAMPS"],"trace_mode":"opentelemetry","trace_rate":"100"}`, 0.01},
		{"/v2/models/sum/trace/setting", "", 200, `"trace_rate":"100"`, 0.01},
		{"/v2/trace/setting", `{"trace_rate":"4"}`, 200, `"trace_rate":"4"`, 0.25},
		{"/v2/trace/setting", `{"trace_level":["OFF"]}`, 200, `"trace_level":["OFF"]`, 0},
		{"/v2/trace/setting", `{"trace_rate":2}`, 200, `"trace_rate":"2"`, 0},
		{"/v2/trace/setting", `{"trace_level":["TIMESTAMPS"],"trace_file":"","trace_count":"-1"}`, 200, `"trace_rate":"2"`, 0.5},
		{"/v2/trace/setting", `{"trace_rate":null}`, 200, `"trace_rate":"100"`, 0.01},

		{"/v2/trace/setting", `{"trace_rate":"0"}`, 400, "trace_rate", 0.01},
		{"/v2/trace/setting", `{"trace_rate":["1","2"]}`, 400, "trace_rate", 0.01},
		{"/v2/trace/setting", `{"trace_level":["TENSORS"]}`, 400, "must be OFF or TIMESTAMPS", 0.01},
		{"/v2/trace/setting", `{"trace_file":"/tmp/x"}`, 400, "cannot be changed", 0.01},
		{"/v2/trace/setting", `{"colour":"red"}`, 400, "must be one of", 0.01},
		{"/v2/trace/setting", `{"trace_level":["OFF"],"trace_rate":"x"}`, 400, "trace_rate", 0.01},
		{"/v2/trace/setting", `{"trace_rate"`, 400, "body: JSON", 0.01},
		{"/v2/models/sum/trace/setting", `{"trace_rate":"4"}`, 400, "all models have those of /v2/trace/setting", 0.01},
		{"/v2/models/nope/trace/setting", "", 404, "nope", 0.01},
	} {
		method := map[bool]string{true: "GET", false: "POST"}[c.body == ""]
		code, _, text := call(t, method, server.URL+c.path, strings.NewReader(c.body))
		if code != c.code || !strings.Contains(string(text), c.want) || rate.Rate() != c.rate {
			t.Errorf("%s %s: %d %s, a rate of %v; want %d %q, %v", c.path, c.body, code, text, rate.Rate(), c.code, c.want, c.rate)
		}
	}
}

// TestTraceSettingsWithoutACollector: the settings say that nothing is traced, and refuse changes.
func TestTraceSettingsWithoutACollector(t *testing.T) {
	server, _ := rest(t, Options{})
	if code, _, text := call(t, "GET", server.URL+"/v2/trace/setting", nil); code != http.StatusOK || !strings.Contains(string(text), `"trace_level":["OFF"]`) {
		t.Errorf("%d %s", code, text)
	}
	if code, _, text := call(t, "POST", server.URL+"/v2/trace/setting", strings.NewReader(`{"trace_level":["TIMESTAMPS"]}`)); code != http.StatusBadRequest || !strings.Contains(string(text), "no collector") {
		t.Errorf("%d %s", code, text)
	}
}

// TestTraceSettingsOverGRPC: the same settings over gRPC.
func TestTraceSettingsOverGRPC(t *testing.T) {
	rate := share(0.5)
	c, _ := client(t, compute)
	s := &grpcServer{g: New(c, Options{TraceRate: &rate})}
	defer s.g.grpc.Stop()
	r, err := s.TraceSetting(t.Context(), &oip.TraceSettingRequest{Settings: map[string]*oip.TraceSettingRequest_SettingValue{"trace_rate": {Value: []string{"10"}}}})
	if err != nil || r.Settings["trace_rate"].Value[0] != "10" || rate != 0.1 {
		t.Errorf("%v, %v, a rate of %v", r, err, rate)
	}
	r, err = s.TraceSetting(t.Context(), &oip.TraceSettingRequest{Settings: map[string]*oip.TraceSettingRequest_SettingValue{"trace_rate": {}}})
	if err != nil || rate != 0.5 {
		t.Errorf("cleared: %v, %v, a rate of %v", r, err, rate)
	}
	if _, err := s.TraceSetting(t.Context(), &oip.TraceSettingRequest{ModelName: "nope"}); status.Code(err) != codes.NotFound {
		t.Errorf("a model that is not there: %v", err)
	}
}
