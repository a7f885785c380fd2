package gateway

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"downbeat.dev/core/observe"
	"downbeat.dev/frontend/gateway/clients"
	"downbeat.dev/frontend/gateway/oip"
)

const (
	clusterToken = "cluster-0123456789abcdef"
	sumToken     = "sum-0123456789abcdef"
	slowToken    = "slow-0123456789abcdef"
	fewToken     = "few-0123456789abcdef"
)

// withClients returns a gateway's options with three clients: one may use only the model sum, one may send one
// request in 1000 s, one may send one request at a time.
func withClients(t *testing.T) Options {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clients.yaml")
	text := "clients:\n- {name: sums, models: [sum], token: " + sumToken + "}\n- {name: slow, rate: 0.001, token: " + slowToken +
		"}\n- {name: few, in_flight: 1, token: " + fewToken + "}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := clients.Open(path, clusterToken, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return Options{Token: clusterToken, Clients: set}
}

func TestClientsOverREST(t *testing.T) {
	server, _ := rest(t, withClients(t))
	const twoRows = `{"inputs":[{"name":"a","datatype":"FP32","shape":[2,2],"data":[1,2,3,4]},{"name":"b","datatype":"FP32","shape":[2,2],"data":[1,2,3,4]}]}`
	for _, c := range []struct {
		method, path, body, token string
		code                      int
		says                      string
	}{
		{"POST", "/v2/models/sum/infer", sumBody, sumToken, 200, ""},
		{"POST", "/v2/models/sum/infer", sumBody, "", 401, "a token of client_tokens_file"},
		{"POST", "/v2/models/sum/infer", sumBody, clusterToken, 401, "a token of client_tokens_file"},
		{"POST", "/v2/models/text/infer", sumBody, sumToken, 403, "client sums: the client may not use this model"},
		{"POST", "/v2/models/nowhere/infer", sumBody, sumToken, 403, "may not use"},
		{"GET", "/v2/models/text", "", sumToken, 403, "may not use"},
		{"GET", "/v2/models/text/stats", "", sumToken, 403, "may not use"},
		{"GET", "/v2/models/text/ready", "", sumToken, 403, "may not use"},
		{"GET", "/v2/models/sum", "", sumToken, 200, ""},
		{"POST", "/v2/models/sum/infer", sumBody, slowToken, 200, ""},
		{"POST", "/v2/models/sum/infer", sumBody, slowToken, 429, "client slow: the client's requests per second are used up"},
		{"POST", "/v2/models/sum/infer", twoRows, fewToken, 429, "client few: the client has as many requests under way"},
		{"POST", "/v2/models/sum/infer", sumBody, fewToken, 200, ""},
		{"POST", "/v2/models/sum/infer", sumBody, fewToken, 200, ""},

		// Only operators reach paths outside the API; anyone reaches health.
		{"GET", "/metrics", "", sumToken, 401, "the token that the gateway was given"},
		{"GET", "/v2/downbeat/explain", "", sumToken, 401, "the token that the gateway was given"},
		{"GET", observe.SessionsPath, "", sumToken, 401, "the token that the gateway was given"},
		{"GET", observe.LearnersPath, "", sumToken, 401, "the token that the gateway was given"},
		{"GET", "/v2/downbeat/page", "", sumToken, 401, "the token that the gateway was given"},
		{"POST", "/v2/logging", "{}", sumToken, 401, "the token that the gateway was given"},
		{"POST", "/v2/repository/models/sum/rollback", "{}", sumToken, 401, "the token that the gateway was given"},
		{"GET", "/metrics", "", clusterToken, 200, `downbeat_client_requests_total{client="sums",result="model"} 5`},
		{"GET", "/metrics", "", clusterToken, 200, `downbeat_client_requests_total{client="few",result="admitted"} 2`},
		{"GET", "/metrics", "", clusterToken, 200, `downbeat_client_in_flight_requests{client="few"} 0`},
		{"GET", "/v2/health/live", "", "", 200, ""},
	} {
		code, _, text := call(t, c.method, server.URL+c.path, strings.NewReader(c.body), "Authorization", "Bearer "+c.token)
		if code != c.code || !strings.Contains(string(text), c.says) {
			t.Errorf("%s %s of %.4s: %d %s, want %d %s", c.method, c.path, c.token, code, text, c.code, c.says)
		}
		if strings.Contains(string(text), `model="nowhere"`) {
			t.Error("a name that a client makes up is a label")
		}
	}

	// Lists show no other model.
	for _, path := range []string{"/v2/repository/index", "/v2/models/stats"} {
		_, _, text := call(t, "GET", server.URL+path, nil, "Authorization", "Bearer "+sumToken)
		if !strings.Contains(string(text), `"sum"`) || strings.Contains(string(text), `"image"`) {
			t.Errorf("%s: %s", path, text)
		}
	}
}

func TestClientsOverGRPC(t *testing.T) {
	conn, _ := rpc(t, withClients(t))
	c := oip.NewGRPCInferenceServiceClient(conn)
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+token)
	}
	infer := func(token, model string) error {
		r := sumRequest(floats(1, 2), floats(1, 2))
		r.ModelName = model
		_, err := c.ModelInfer(as(token), r)
		return err
	}

	for _, call := range []struct {
		token, model string
		want         codes.Code
	}{
		{"nobody's", "sum", codes.Unauthenticated}, {clusterToken, "sum", codes.Unauthenticated}, {sumToken, "sum", codes.OK},
		{sumToken, "text", codes.PermissionDenied}, {slowToken, "sum", codes.OK}, {slowToken, "sum", codes.ResourceExhausted},
		{fewToken, "sum", codes.OK}, {fewToken, "sum", codes.OK},
	} {
		if err := infer(call.token, call.model); status.Code(err) != call.want {
			t.Errorf("%s of %.4s: %v, want %v", call.model, call.token, err, call.want)
		}
	}

	if _, err := c.ModelReady(as(sumToken), &oip.ModelReadyRequest{Name: "text"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("readiness of another model: %v", err)
	}
	if _, err := c.LogSettings(as(sumToken), &oip.LogSettingsRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the log's settings as a client: %v", err)
	}
	if _, err := c.LogSettings(as(clusterToken), &oip.LogSettingsRequest{}); err != nil {
		t.Errorf("the log's settings as an operator: %v", err)
	}
	if r, err := c.RepositoryIndex(as(sumToken), &oip.RepositoryIndexRequest{}); err != nil || len(r.Models) != 1 {
		t.Errorf("the index: %v, %v", r, err)
	}
	streamClients(t, c, as(slowToken))
}

// streamClients asks twice over one stream: each request belongs to a client, not the stream.
func streamClients(t *testing.T, c oip.GRPCInferenceServiceClient, ctx context.Context) {
	t.Helper()
	var stream grpc.BidiStreamingClient[oip.ModelInferRequest, oip.ModelStreamInferResponse]
	stream, err := c.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stream.Send(sumRequest(floats(1, 2), floats(1, 2))); err != nil {
			t.Fatal(err)
		}
		if r, err := stream.Recv(); err != nil || !strings.Contains(r.ErrorMessage, "requests per second are used up") {
			t.Errorf("%v, %v", r, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}
