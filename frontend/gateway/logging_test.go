package gateway

import (
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"downbeat.dev/core/observe/levels"
	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/internal/logtest"
)

// TestConformanceLogging: the log settings extension, and the access log's request ids and traces.
func TestConformanceLogging(t *testing.T) {
	var log strings.Builder
	level := levels.New(slog.LevelInfo)
	server, _ := rest(t, Options{LogLevels: level, Access: slog.New(slog.NewTextHandler(&log, nil))})
	settings := func(method, body string) (int, string) {
		code, _, text := call(t, method, server.URL+"/v2/logging", strings.NewReader(body))
		return code, string(text)
	}
	if code, text := settings("GET", ""); code != 200 || text != `{"log_error":true,"log_file":"","log_format":"default","log_info":true,"log_verbose_level":0,"log_warning":true}` {
		t.Errorf("%d %s", code, text)
	}
	for body, want := range map[string]slog.Level{`{"log_verbose_level":1}`: slog.LevelDebug, `{"log_verbose_level":0,"log_info":false}`: slog.LevelWarn,
		`{"log_verbose_level":0,"log_info":false,"log_warning":false}`: slog.LevelError, `{"log_verbose_level":0,"log_info":true,"log_warning":true,"log_file":""}`: slog.LevelInfo} {
		if code, text := settings("POST", body); code != 200 || level.Level() != want {
			t.Errorf("%s: %d %s, level %v, want %v", body, code, text, level.Level(), want)
		}
		level.Set(slog.LevelInfo)
	}

	// Levels of single rooms, which Triton does not have, appear once one room has its own level.
	if code, text := settings("POST", `{"log_rooms":"rdma=debug,backend=error"}`); code != 200 || !strings.Contains(text, `"log_rooms":"rdma=debug,backend=error"`) ||
		level.LevelOf("rdma") != slog.LevelDebug || level.LevelOf("backend") != slog.LevelError || level.LevelOf("core") != slog.LevelInfo {
		t.Errorf("rooms: %d %s", code, text)
	}
	if code, text := settings("POST", `{"log_info":true}`); code != 200 || level.RoomsText() != "rdma=debug,backend=error" {
		t.Errorf("rooms after another setting: %d %s", code, text)
	}
	if code, text := settings("POST", `{"log_rooms":""}`); code != 200 || strings.Contains(text, "log_rooms") || level.LevelOf("rdma") != slog.LevelInfo {
		t.Errorf("no rooms: %d %s", code, text)
	}

	for _, body := range []string{`{"log_rooms":"rdma=loud"}`, `{"log_rooms":true}`, `{"log_rooms":"gpu=debug","log_info":false}`, `{"log_file":"/tmp/x"}`, `{"log_info":3}`, `{"log_verbose_level":-1}`, `{"log_nonsense":true}`, `[`} {
		if code, text := settings("POST", body); code != 400 || level.Level() != slog.LevelInfo {
			t.Errorf("%s: %d %s, level %v", body, code, text, level.Level())
		}
	}

	const trace = "0af7651916cd43dd8448eb211c80319c"
	call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(sumBody), "Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(strings.Replace(sumBody, "[1,2]}", "[-2,2]}", 1)), "Traceparent", "nonsense")
	call(t, "POST", server.URL+"/v2/models/nope/infer", strings.NewReader(sumBody))
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 3 {
		t.Errorf("%d lines of 3 calls: %q", len(lines), lines)
	}
	for i, want := range [][]string{{"protocol=rest", "model=sum", "version=1", "id=q", "rows=1", "trace=" + trace, "outcome=ok"}, {"id=q", "status=429", "outcome=queue_full"}, {"model=nope", "status=404", "outcome=unknown_model"}} {
		for _, w := range want {
			if i >= len(lines) || !strings.Contains(lines[i], w) {
				t.Fatalf("access log %q: line %d lacks %s", lines, i, w)
			}
		}
	}
}

// TestConformanceLoggingGRPC: the access log and the settings over gRPC.
func TestConformanceLoggingGRPC(t *testing.T) {
	var log logtest.Buffer
	level := levels.New(slog.LevelInfo)
	conn, _ := rpc(t, Options{LogLevels: level, Access: slog.New(slog.NewTextHandler(&log, nil))})
	c := oip.NewGRPCInferenceServiceClient(conn)

	const trace = "0af7651916cd43dd8448eb211c80319c"
	traced := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	good := sumRequest(floats(1, 2), floats(3, 4))
	good.Id = "q7"
	full := sumRequest(floats(-2, 2), floats(3, 4))
	unknown := sumRequest(floats(1, 2), floats(3, 4))
	unknown.ModelName = "nope"
	short := sumRequest(floats(1), floats(3, 4))
	for _, r := range []*oip.ModelInferRequest{good, full, unknown, short} {
		_, _ = c.ModelInfer(traced, r) // the log says how each call ended
	}

	// Each request of a stream has its own line.
	stream, err := c.ModelStreamInfer(traced)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stream.Send(good); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}

	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	wants := [][]string{{"model=sum", "version=1", "id=q7", "rows=1", "outcome=ok"}, {"outcome=queue_full"}, {"model=nope", "outcome=unknown_model"},
		{"model=sum", "outcome=invalid_argument"}, {"id=q7", "outcome=ok"}, {"id=q7", "outcome=ok"}}
	if len(lines) != len(wants) {
		t.Fatalf("%d lines of %d calls: %q", len(lines), len(wants), lines)
	}
	for i, want := range wants {
		for _, w := range append(want, "protocol=grpc", "trace="+trace, "took=") {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d lacks %s: %s", i, w, lines[i])
			}
		}
	}

	set := func(name, value string) (*oip.LogSettingsResponse, error) {
		return c.LogSettings(t.Context(), &oip.LogSettingsRequest{Settings: map[string]*oip.LogSettingsRequest_SettingValue{
			name: {ParameterChoice: &oip.LogSettingsRequest_SettingValue_StringParam{StringParam: value}}}})
	}
	if told, err := set("log_rooms", "rdma=debug"); err != nil || told.Settings["log_rooms"].GetStringParam() != "rdma=debug" || level.LevelOf("rdma") != slog.LevelDebug {
		t.Errorf("rooms: %v %v", told, err)
	}
	if _, err := set("log_rooms", "gpu=debug"); status.Code(err) != codes.InvalidArgument || level.RoomsText() != "rdma=debug" {
		t.Errorf("a room that is not there: %v", err)
	}
}
