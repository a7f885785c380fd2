package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/internal/tlstest"
)

func TestTLS(t *testing.T) {
	server := tlstest.SelfSigned(t)
	roots := server.RootCAs
	c, _ := client(t, compute)
	g := New(c, Options{TLS: server, Token: "secret"})
	rest, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	rpc, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- g.Serve(ctx, rest, rpc) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	trust := &tls.Config{RootCAs: roots}
	transport := &http.Transport{TLSClientConfig: trust}
	defer transport.CloseIdleConnections()
	r := httptest.NewRequest("POST", "https://"+rest.Addr().String()+"/v2/models/sum/infer", strings.NewReader(sumBody))
	r.RequestURI = ""
	r.Header.Set("Authorization", "Bearer secret")
	w, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	if w.StatusCode != 200 || w.TLS == nil {
		t.Errorf("%s", w.Status)
	}
	var stranger x509.UnknownAuthorityError
	if _, err := http.Get("https://" + rest.Addr().String() + "/v2"); !errors.As(err, &stranger) {
		t.Errorf("a stranger's certificate: %v, want that its authority is unknown", err)
	}
	conn, err := grpc.NewClient(rpc.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(trust)), grpc.WithPerRPCCredentials(bearer{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(context.Background(), sumRequest(floats(1, 2), floats(3, 4))); err != nil {
		t.Error(err)
	}
}

type bearer struct{}

func (bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer secret"}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }
