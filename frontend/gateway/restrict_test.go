package gateway

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"downbeat.dev/frontend/gateway/oip"
)

// restricted reads a file of restrictions.
func restricted(t *testing.T, text string) (*Restrictions, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "restricted")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return OpenRestrictions(path)
}

// TestConformanceRestrictedAPI: a class of REST paths requires a header, however the path is spelled; other classes
// do not.
func TestConformanceRestrictedAPI(t *testing.T) {
	r, err := restricted(t, "# operators only\nhttp model-repository,statistics:admin-key=right\n\nhttp health:probe=x\ngrpc inference:k=v\n")
	if err != nil {
		t.Fatal(err)
	}
	server, _ := rest(t, Options{Restricted: r})
	for _, c := range []struct {
		method, path, body, key, value string
		want                           int
	}{
		{"POST", "/v2/repository/index", "{}", "", "", http.StatusForbidden},
		{"POST", "/v2/repository/index", "{}", "Admin-Key", "wrong", http.StatusForbidden},
		{"POST", "/v2/repository/index", "{}", "Admin-Key", "righ", http.StatusForbidden},
		{"POST", "/v2/repository/index", "{}", "Probe", "right", http.StatusForbidden},
		{"POST", "/v2/repository/index", "{}", "Admin-Key", "right", http.StatusOK},
		{"GET", "/v2/models/sum/stats", "", "", "", http.StatusForbidden},
		{"HEAD", "/v2/models/sum/stats", "", "", "", http.StatusForbidden},
		{"GET", "/v2//models/sum/stats", "", "", "", http.StatusForbidden},
		{"GET", "/v2/models/%73um/stats", "", "", "", http.StatusForbidden},
		{"GET", "/v2/models/sum/versions/1/stats", "", "admin-key", "right", http.StatusOK},
		{"GET", "/v2/models/sum/ready", "", "", "", http.StatusForbidden},
		{"GET", "/v2/health/live", "", "probe", "x", http.StatusOK},
		{"GET", "/v2/models/sum", "", "", "", http.StatusOK},
		{"POST", "/v2/models/sum/infer", sumBody, "", "", http.StatusOK},
		{"GET", "/v2/nowhere", "", "", "", http.StatusNotFound},
	} {
		header := []string{}
		if c.key != "" {
			header = append(header, c.key, c.value)
		}
		code, _, text := call(t, c.method, server.URL+c.path, strings.NewReader(c.body), header...)
		if code != c.want || code == http.StatusForbidden && c.method != "HEAD" && !strings.Contains(string(text), "This API is restricted, expecting header '") {
			t.Errorf("%s %s with %s %s: %d %s, want %d", c.method, c.path, c.key, c.value, code, text, c.want)
		}
	}
}

// TestConformanceRestrictedProtocol: the same over gRPC, before a message is read.
func TestConformanceRestrictedProtocol(t *testing.T) {
	r, err := restricted(t, "grpc inference:infer-key=right\ngrpc health:probe=x")
	if err != nil {
		t.Fatal(err)
	}
	conn, _ := rpc(t, Options{Restricted: r})
	client := oip.NewGRPCInferenceServiceClient(conn)
	with := func(key, value string) context.Context {
		return metadata.AppendToOutgoingContext(context.Background(), key, value)
	}
	request := sumRequest(floats(1, 2), floats(3, 4))
	for _, ctx := range []context.Context{context.Background(), with("triton-grpc-protocol-infer-key", "wrong"), with("infer-key", "right")} {
		_, err := client.ModelInfer(ctx, request)
		if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != "This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'" {
			t.Errorf("ModelInfer: %v", err)
		}
	}
	if _, err := client.ModelInfer(with("triton-grpc-protocol-infer-key", "right"), request); err != nil {
		t.Error(err)
	}
	if _, err := client.ModelMetadata(context.Background(), &oip.ModelMetadataRequest{Name: "sum"}); err != nil {
		t.Error(err)
	}
	if _, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("health: %v", err)
	}
}

// TestEveryEndpointHasItsClass: every endpoint of the protocol has a class, so none stays open by omission.
func TestEveryEndpointHasItsClass(t *testing.T) {
	for _, m := range oip.GRPCInferenceService_ServiceDesc.Methods {
		if classOfMethod("/"+oip.GRPCInferenceService_ServiceDesc.ServiceName+"/"+m.MethodName) == "" {
			t.Errorf("%s has no class", m.MethodName)
		}
	}

	c, _ := client(t, compute)
	g := New(c, Options{ClientMemory: true})
	t.Cleanup(g.grpc.Stop)
	mux := http.NewServeMux()
	g.registerRoutes(mux)
	for path, want := range map[string]string{
		"GET /v2": classMetadata, "GET /v2/": classMetadata, "GET /v2/models/m": classMetadata, "GET /v2/models/m/versions/1": classMetadata,
		"GET /v2/health/live": classHealth, "GET /v2/health/ready": classHealth, "GET /v2/models/m/ready": classHealth, "GET /v2/models/m/versions/1/ready": classHealth,
		"POST /v2/models/m/infer": classInference, "POST /v2/models/m/versions/1/infer": classInference,
		"POST /v2/models/m/generate": classInference, "POST /v2/models/m/versions/1/generate_stream": classInference,
		"GET /v2/models/m/config": classConfig, "GET /v2/models/m/versions/1/config": classConfig,
		"GET /v2/models/m/stats": classStatistics, "GET /v2/models/m/versions/1/stats": classStatistics, "GET /v2/models/stats": classStatistics,
		"POST /v2/repository/index": classRepository, "POST /v2/repository/models/m/load": classRepository, "POST /v2/repository/models/m/unload": classRepository, "POST /v2/repository/models/m/rollback": classRepository,
		"GET /v2/systemsharedmemory/status": classMemory, "GET /v2/systemsharedmemory/region/r/status": classMemory, "POST /v2/systemsharedmemory/region/r/register": classMemory,
		"POST /v2/systemsharedmemory/unregister": classMemory, "GET /v2/cudasharedmemory/status": classMemory, "POST /v2/cudasharedmemory/region/r/register": classMemory,
		"GET /v2/trace/setting": classTrace, "POST /v2/models/m/trace/setting": classTrace, "GET /v2/logging": classLogging, "POST /v2/logging": classLogging,
	} {
		method, path, _ := strings.Cut(path, " ")
		q, err := http.NewRequest(method, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, route := mux.Handler(q); classOfRoute(route) != want {
			t.Errorf("%s %s: route %q has class %q, want %s", method, path, route, classOfRoute(route), want)
		}
	}
}

// TestRestrictionsAreChecked: an error names the line and what is allowed, never a value.
func TestRestrictionsAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"ftp health:k=secret":                           `:1: protocol "ftp": want http or grpc`,
		"\nhttp health":                                 ":2: want http or grpc, then CLASS",
		"http health:secret":                            "want http or grpc, then CLASS",
		"http healthy:k=secret":                         `class "healthy": want one of health, metadata, inference`,
		"http :k=secret":                                `class "": want one of`,
		"http health:k=":                                "value of key k: want 1 to 1024 bytes",
		"http health:=secret":                           `key "": want 1 to 64 letters`,
		"http health:a b=secret":                        `key "a b": want 1 to 64 letters`,
		"http health:k=secret\nhttp trace,health:j=two": ":2: class health is restricted twice over http",
		strings.Repeat("#", restrictedBytesMax+1):       "larger than 65536 bytes",
	} {
		if _, err := restricted(t, text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.40q: %v, want …%s…", text, err, want)
		}
	}
	if _, err := OpenRestrictions(filepath.Join(t.TempDir(), "none")); err == nil || !strings.HasPrefix(err.Error(), "restricted_file: open") {
		t.Errorf("no file: %v", err)
	}
}
