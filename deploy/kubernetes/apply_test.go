// Package kubernetes_test applies what the chart makes to a real kube-apiserver.
package kubernetes_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"downbeat.dev/internal/apiserver"
)

const namespace = "serving"

// plurals are the kinds that the chart makes, as paths name them.
var plurals = map[string]string{
	"ConfigMap": "configmaps", "Service": "services", "ServiceAccount": "serviceaccounts", "Deployment": "deployments", "StatefulSet": "statefulsets",
	"Role": "roles", "RoleBinding": "rolebindings", "NetworkPolicy": "networkpolicies", "PodDisruptionBudget": "poddisruptionbudgets",
	"HorizontalPodAutoscaler": "horizontalpodautoscalers", "ScaledObject": "scaledobjects", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules",
}

type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
}

// path is where an object of the chart lives.
func (o object) path(t *testing.T) string {
	t.Helper()
	plural := plurals[o.Kind]
	if plural == "" {
		t.Fatalf("kind %s: the test knows no path", o.Kind)
	}
	api := "/apis/" + o.APIVersion
	if !strings.Contains(o.APIVersion, "/") {
		api = "/api/" + o.APIVersion
	}
	return fmt.Sprintf("%s/namespaces/%s/%s/%s", api, namespace, plural, o.Metadata.Name)
}

// objects splits a file at its documents.
func objects(t *testing.T, file string) (all []object, texts [][]byte) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var node yaml.Node
		if err := d.Decode(&node); errors.Is(err, io.EOF) {
			return all, texts
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var o object
		if err := node.Decode(&o); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		one, err := yaml.Marshal(&node)
		if err != nil {
			t.Fatal(err)
		}
		all, texts = append(all, o), append(texts, one)
	}
}

// apply creates or changes an object as `kubectl apply --server-side --validate=strict` does.
func apply(t *testing.T, s *apiserver.Server, path string, text []byte) {
	t.Helper()
	status, answer, err := s.Do("PATCH", path+"?fieldManager=test&force=true&fieldValidation=Strict", s.Token, "application/apply-patch+yaml", text)
	if err != nil || status != http.StatusOK && status != http.StatusCreated {
		t.Errorf("%s: %d %v %s", path, status, err, answer)
	}
}

// TestClusterTakesTheChart: a kube-apiserver takes every object of the chart's renderings without an unknown field, a
// second time as well, and the role of the schedulers lets them keep their Lease and nothing else.
func TestClusterTakesTheChart(t *testing.T) {
	s := apiserver.Start(t)
	apply(t, s, "/api/v1/namespaces/"+namespace, []byte("{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}"))
	defineCustom(t, s)

	renderings, err := filepath.Glob("check/testdata/*.rendered")
	if err != nil || len(renderings) < 2 {
		t.Fatalf("%d renderings, %v", len(renderings), err)
	}
	kinds := map[string]bool{}
	for _, file := range append(renderings, "downbeat.yaml", "downbeat.yaml") {
		all, texts := objects(t, file)
		for i, o := range all {
			apply(t, s, o.path(t), texts[i])
			kinds[o.Kind] = true
		}
	}
	for kind := range plurals {
		if !kinds[kind] {
			t.Errorf("no rendering has a %s", kind)
		}
	}
	checkLeaseRights(t, s)
}

// defineCustom has the server know the objects of KEDA and of the Prometheus operator.
func defineCustom(t *testing.T, s *apiserver.Server) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(apiserver.Dir(), "crds/*.yaml"))
	if err != nil || len(files) != 3 {
		t.Fatalf("%d definitions, %v: run make apiserver", len(files), err)
	}
	for _, file := range files {
		all, texts := objects(t, file)
		for i, o := range all {
			apply(t, s, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+o.Metadata.Name, texts[i])
		}
	}
	for _, list := range []string{"/apis/keda.sh/v1alpha1/scaledobjects", "/apis/monitoring.coreos.com/v1/servicemonitors", "/apis/monitoring.coreos.com/v1/prometheusrules"} {
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			if status, _, err := s.Do("GET", list, s.Token, "", nil); err == nil && status == http.StatusOK {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not served", list)
			}
		}
	}
}

// checkLeaseRights asks as the schedulers' service account.
func checkLeaseRights(t *testing.T, s *apiserver.Server) {
	t.Helper()
	status, answer, err := s.Do("POST", "/api/v1/namespaces/"+namespace+"/serviceaccounts/downbeat-scheduler/token", s.Token, "application/json",
		[]byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`))
	var request struct{ Status struct{ Token string } }
	if err != nil || status != http.StatusCreated || json.Unmarshal(answer, &request) != nil {
		t.Fatalf("no token for the service account: %d %v %s", status, err, answer)
	}
	token := request.Status.Token

	leases := "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
	lease := func(name string) []byte {
		return []byte(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"` + name + `","namespace":"` + namespace + `"}}`)
	}
	for _, c := range []struct {
		method, path string
		body         []byte
		want         int
	}{
		{"POST", leases, lease("downbeat"), http.StatusCreated},
		{"GET", leases + "/downbeat", nil, http.StatusOK},
		{"PUT", leases + "/downbeat", lease("downbeat"), http.StatusUnprocessableEntity}, // allowed, but of no revision
		{"DELETE", leases + "/downbeat", nil, http.StatusForbidden},
		{"GET", leases + "/another", nil, http.StatusForbidden},
		{"GET", leases, nil, http.StatusForbidden},
		{"GET", "/api/v1/namespaces/" + namespace + "/secrets", nil, http.StatusForbidden},
		{"GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/downbeat", nil, http.StatusForbidden},
	} {
		// Rights that were just given take a moment to be seen.
		got := 0
		for end := time.Now().Add(30 * time.Second); got != c.want && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if got, answer, err = s.Do(c.method, c.path, token, "application/json", c.body); err != nil {
				t.Fatal(err)
			}
		}
		if got != c.want {
			t.Errorf("%s %s: %d, want %d: %s", c.method, c.path, got, c.want, answer)
		}
	}
}
