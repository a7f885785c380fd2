package gateway

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	prom "github.com/prometheus/common/model"

	"downbeat.dev/bench/stage"
	"downbeat.dev/frontend"
)

// metricSums reads /metrics and returns the sum of every metric of model "car", by name. Histograms have their sum
// and their count.
func metricSums(t *testing.T, url string) map[string]float64 {
	t.Helper()
	_, _, text := call(t, "GET", url+"/metrics", nil)
	parser := expfmt.NewTextParser(prom.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}

	sums := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			of := map[string]string{}
			for _, l := range m.Label {
				of[l.GetName()] = l.GetValue()
			}
			if of["model"] != "" && (of["model"] != "car" || of["version"] != "1") {
				continue
			}
			sums[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
			sums[name+"_count"] += float64(m.GetHistogram().GetSampleCount())
			if reason := of["reason"]; reason != "" {
				sums[name+" "+reason] += m.GetCounter().GetValue()
			}
		}
	}
	return sums
}

// serveWatched serves a gateway with a view of the scheduler over REST, and returns its address.
func serveWatched(t *testing.T, s *stage.Stage, o Options) string {
	t.Helper()
	o.Process = watched(t, s)
	g := New(s.Client, o)
	server := httptest.NewServer(g.rest.Handler)
	t.Cleanup(func() {
		close(g.closing)
		http.DefaultClient.CloseIdleConnections()
		server.Close()
		g.grpc.Stop()
	})
	return server.URL
}

// pairBody returns a call of two rows of zeros.
func pairBody(m *frontend.Model, parameters string) string {
	var inputs []string
	for _, in := range m.Inputs {
		zeros := strings.TrimSuffix(strings.Repeat("0,", 2*in.RowElements()), ",")
		shape := strings.ReplaceAll(fmt.Sprint(batchShape(in.Shape, 2)), " ", ",")
		inputs = append(inputs, `{"name":"`+in.Name+`","datatype":"`+string(in.Datatype)+`","shape":`+shape+`,"data":[`+zeros+`]}`)
	}
	return `{"parameters":{` + parameters + `},"inputs":[` + strings.Join(inputs, ",") + `]}`
}

// TestTritonNamesAddUp: the metrics with Triton's names agree with the gateway's own, and their parts add up to the
// whole; without the option there are none.
func TestTritonNamesAddUp(t *testing.T) {
	s, err := stage.Open(context.Background(), map[string]string{"car": emulated("0.1", "1", "20000", "8")}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	until(t, func() bool { return s.Client.Ready() })

	url := serveWatched(t, s, Options{TritonMetrics: true})
	m := s.Client.Model("car", "")
	for range 5 {
		if code, _, text := call(t, "POST", url+"/v2/models/car/infer", strings.NewReader(pairBody(m, ""))); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
	}
	if code, _, text := call(t, "POST", url+"/v2/models/car/infer", strings.NewReader(pairBody(m, `"timeout":1`))); code != http.StatusGatewayTimeout {
		t.Fatalf("a timeout of 1 µs: %d %s", code, text)
	}

	// The scheduler is sampled four times a second, so batches and queues lag by one sample.
	until(t, func() bool { return metricSums(t, url)["downbeat_scheduler_served_total"] == 10 })
	sums := metricSums(t, url)
	for name, want := range map[string]float64{
		"nv_inference_request_success":          sums["downbeat_inference_request_success_total"],
		"nv_inference_count":                    10,
		"nv_inference_request_failure":          sums["downbeat_inference_request_failure_total"],
		"nv_inference_request_failure REJECTED": 2,
		"nv_inference_exec_count":               sums["downbeat_inference_batch_size_count"],
		"nv_inference_pending_request_count":    sums["downbeat_inference_queued_requests"],
		"nv_cache_num_hits_per_model":           0,
		"nv_cache_num_misses_per_model":         0,
	} {
		if got, there := sums[name]; !there || got != want {
			t.Errorf("%s: %v (%v), want %v", name, got, there, want)
		}
	}

	if busy, there := sums["nv_gpu_utilization"]; !there || busy < 0 || busy > 1 {
		t.Errorf("nv_gpu_utilization: %v (%v), want 0 to 1", busy, there)
	}

	near := func(name string, got, want float64) {
		if want == 0 || math.Abs(got-want) > 1e-6*want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	near("infer", sums["nv_inference_compute_infer_duration_us"], 1e6*sums["downbeat_inference_compute_infer_duration_seconds"])
	near("whole", sums["nv_inference_request_duration_us"], 1e6*sums["downbeat_inference_request_duration_seconds"])
	near("parts", sums["nv_inference_queue_duration_us"]+sums["nv_inference_compute_input_duration_us"]+sums["nv_inference_compute_infer_duration_us"]+
		sums["nv_inference_compute_output_duration_us"], sums["nv_inference_request_duration_us"])

	if _, _, text := call(t, "GET", serveWatched(t, s, Options{})+"/metrics", nil); strings.Contains(string(text), "nv_") {
		t.Error("without the option there are Triton's names")
	}
}

// TestTritonReasons: every failure reason has a Triton reason.
func TestTritonReasons(t *testing.T) {
	for reason, want := range map[string]string{"queue_full": "REJECTED", "deadline_cannot_be_met": "REJECTED", "canceled": "CANCELED",
		"execution_failed": "BACKEND", "no_backend": "BACKEND", "invalid_argument": "OTHER", "anything": "OTHER"} {
		if got := tritonReason(reason); got != want {
			t.Errorf("%s: %s, want %s", reason, got, want)
		}
	}
}
