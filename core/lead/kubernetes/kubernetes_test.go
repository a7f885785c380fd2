package kubernetes

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/core/lead"
)

// apiServer keeps leases as Kubernetes documents it: resource versions are compared, a name is made once,
// times are MicroTimes. It stands in where no kube-apiserver was built: TestLeaseOnAnAPIServer has one.
type apiServer struct {
	t       *testing.T
	mu      sync.Mutex
	lease   *lease
	version int
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	const leases = "/apis/coordination.k8s.io/v1/namespaces/prod/leases"
	refuse := func(code int) {
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "message": "refused by the test", "code": code})
	}
	if r.Header.Get("Authorization") != "Bearer of the pod" {
		refuse(http.StatusForbidden)
		return
	}

	var got lease
	if r.Method != http.MethodGet {
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		err := d.Decode(&got)
		if _, bad := time.Parse(renewTimeFormat, got.Spec.RenewTime); err != nil || bad != nil || got.Kind != "Lease" || got.Metadata.Name != "downbeat" {
			a.t.Errorf("%v %v %+v", err, bad, got)
		}
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Path == leases+"/downbeat" && a.lease == nil:
		refuse(http.StatusNotFound)
		return
	case r.Method == http.MethodGet && r.URL.Path == leases+"/downbeat":
	case r.Method == http.MethodPost && r.URL.Path == leases && a.lease != nil:
		refuse(http.StatusConflict)
		return
	case r.Method == http.MethodPost && r.URL.Path == leases && got.Metadata.ResourceVersion == "":
		a.keep(&got)
		w.WriteHeader(http.StatusCreated)
	case r.Method == http.MethodPut && r.URL.Path == leases+"/downbeat" && a.lease == nil:
		refuse(http.StatusNotFound)
		return
	case r.Method == http.MethodPut && r.URL.Path == leases+"/downbeat" && got.Metadata.ResourceVersion != a.lease.Metadata.ResourceVersion:
		refuse(http.StatusConflict)
		return
	case r.Method == http.MethodPut && r.URL.Path == leases+"/downbeat":
		a.keep(&got)
	default:
		refuse(http.StatusMethodNotAllowed)
		return
	}
	json.NewEncoder(w).Encode(a.lease)
}

func (a *apiServer) keep(l *lease) {
	a.version++
	l.Metadata.ResourceVersion = strconv.Itoa(a.version)
	a.lease = l
}

func openStore(t *testing.T) (*Store, *apiServer, string) {
	a := &apiServer{t: t}
	server := httptest.NewTLSServer(a)
	t.Cleanup(server.Close)
	account := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, text := range map[string][]byte{"ca.crt": ca, "token": []byte("of the pod\n")} {
		if err := os.WriteFile(filepath.Join(account, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := openAccount(server.URL, account, "prod", "downbeat")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, a, account
}

func TestLeaseComparesAndSwaps(t *testing.T) {
	s, a, _ := openStore(t)
	ctx := context.Background()
	if r, at, err := s.Get(ctx); err != nil || at != "" || r != (lead.Record{}) {
		t.Fatalf("before anybody led: %+v %q %v", r, at, err)
	}
	want := lead.Record{Epoch: 1 << 40, Holder: "s1", Beat: 3}
	first, err := s.Swap(ctx, "", want)
	if err != nil {
		t.Fatal(err)
	}
	if r, at, err := s.Get(ctx); err != nil || at != first || r != want {
		t.Fatalf("%+v %q %v", r, at, err)
	}
	if _, err := s.Swap(ctx, "", want); !errors.Is(err, lead.ErrChanged) {
		t.Errorf("made twice: %v", err)
	}
	want.Beat++
	second, err := s.Swap(ctx, first, want)
	if err != nil || second == first {
		t.Fatalf("%q %v", second, err)
	}
	if _, err := s.Swap(ctx, first, want); !errors.Is(err, lead.ErrChanged) {
		t.Errorf("an old revision: %v", err)
	}
	a.lease = nil
	if _, err := s.Swap(ctx, second, want); !errors.Is(err, lead.ErrChanged) {
		t.Errorf("removed meanwhile: %v", err)
	}
}

func TestLeaseSaysWhatIsWrong(t *testing.T) {
	s, a, account := openStore(t)
	if err := os.WriteFile(filepath.Join(account, "token"), []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(context.Background()); err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), "refused by the test") {
		t.Errorf("not allowed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(account, "token"), []byte("of the pod"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.lease = &lease{Metadata: metadata{Annotations: map[string]string{epochKey: "many"}}}
	if _, _, err := s.Get(context.Background()); err == nil || !strings.Contains(err.Error(), epochKey) {
		t.Errorf("an epoch that is no number: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Open("prod", "downbeat"); err == nil || !strings.Contains(err.Error(), "no pod") {
		t.Errorf("outside a pod: %v", err)
	}
}
