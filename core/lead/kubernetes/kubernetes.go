// Package kubernetes keeps the leader's record in a Lease of the cluster that this process runs in. It uses the API
// server's REST interface for that one object, with the pod's service account.
package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/core/lead"
)

// accountDir holds a pod's service account.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// answerMax bounds the bytes read of an answer.
const answerMax = 1 << 20

// Annotations of the Lease for values that its fields cannot hold: epochs exceed leaseTransitions.
const (
	epochKey = "downbeat.dev/epoch"
	beatKey  = "downbeat.dev/beat"
)

// Store is a lead.Store. The record's revision is the Lease's resource version.
type Store struct {
	client    *http.Client
	leases    string // URL of the namespace's leases
	namespace string
	name      string
	tokenFile string // read for each call, because the kubelet renews it
}

// Open returns the store of a Lease in the cluster of this pod. The service account must be allowed to get,
// create and update leases of the namespace.
func Open(namespace, name string) (*Store, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("election: kubernetes: this process runs in no pod (KUBERNETES_SERVICE_HOST is not set)")
	}
	return openAccount("https://"+net.JoinHostPort(host, port), accountDir, namespace, name)
}

func openAccount(server, account, namespace, name string) (*Store, error) {
	pem, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("election: kubernetes: service account: %w", err)
	}

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("election: kubernetes: %s: no PEM certificate in it", filepath.Join(account, "ca.crt"))
	}

	t := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
	return &Store{client: &http.Client{Transport: t}, namespace: namespace, name: name, tokenFile: filepath.Join(account, "token"),
		leases: server + "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/leases"}, nil
}

// lease holds the fields of a Lease that are read and written.
type lease struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
}

type metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type spec struct {
	HolderIdentity string `json:"holderIdentity,omitempty"`
	RenewTime      string `json:"renewTime,omitempty"`
}

// renewTimeFormat is the format of metav1.MicroTime.
const renewTimeFormat = "2006-01-02T15:04:05.000000Z07:00"

// Get implements lead.Store.
func (s *Store) Get(ctx context.Context) (lead.Record, lead.Revision, error) {
	var r lead.Record

	l, status, err := s.callServer(ctx, http.MethodGet, s.leases+"/"+url.PathEscape(s.name), nil)
	if err != nil || status == http.StatusNotFound {
		return r, "", err
	}

	if r, err = recordOf(l); err != nil {
		return r, "", fmt.Errorf("election: kubernetes: lease %s/%s: %w", s.namespace, s.name, err)
	}
	return r, lead.Revision(l.Metadata.ResourceVersion), nil
}

// recordOf reads a Lease. A Lease without annotations, made by hand, has no holder.
func recordOf(l *lease) (r lead.Record, err error) {
	r.Holder = l.Spec.HolderIdentity

	// Annotations are text that a person may have edited.
	for key, to := range map[string]*uint64{epochKey: &r.Epoch, beatKey: &r.Beat} {
		if text, there := l.Metadata.Annotations[key]; there {
			if *to, err = strconv.ParseUint(text, 10, 64); err != nil {
				return lead.Record{}, fmt.Errorf("annotation %s: %w", key, err)
			}
		}
	}
	return r, nil
}

// Swap implements lead.Store. The API server compares resource versions.
func (s *Store) Swap(ctx context.Context, old lead.Revision, to lead.Record) (lead.Revision, error) {
	l := &lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease",
		Metadata: metadata{Name: s.name, Namespace: s.namespace, ResourceVersion: string(old), Annotations: map[string]string{
			epochKey: strconv.FormatUint(to.Epoch, 10), beatKey: strconv.FormatUint(to.Beat, 10)}},
		Spec: spec{HolderIdentity: to.Holder, RenewTime: time.Now().UTC().Format(renewTimeFormat)}}

	// POST creates the object and fails if it exists; PUT replaces the version that it names.
	method, at := http.MethodPut, s.leases+"/"+url.PathEscape(s.name)
	if old == "" {
		method, at = http.MethodPost, s.leases
	}

	got, status, err := s.callServer(ctx, method, at, l)
	switch {
	case err != nil:
		return "", err
	case status == http.StatusConflict, status == http.StatusNotFound: // changed, created or deleted meanwhile
		return "", lead.ErrChanged
	}
	return lead.Revision(got.Metadata.ResourceVersion), nil
}

// callServer makes one call. Not found and conflict are results; other refusals are errors with the server's reason.
func (s *Store) callServer(ctx context.Context, method, at string, body *lease) (*lease, int, error) {
	fail := func(err error) (*lease, int, error) {
		return nil, 0, fmt.Errorf("election: kubernetes: %w", err)
	}

	token, err := os.ReadFile(s.tokenFile)
	if err != nil {
		return fail(err)
	}

	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fail(err)
		}
		sent = bytes.NewReader(text)
	}

	r, err := http.NewRequestWithContext(ctx, method, at, sent)
	if err != nil {
		return fail(err)
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Content-Type", "application/json")

	answer, err := s.client.Do(r)
	if err != nil {
		return fail(err)
	}
	defer answer.Body.Close()

	text, err := io.ReadAll(io.LimitReader(answer.Body, answerMax))
	if err != nil {
		return fail(err)
	}

	switch answer.StatusCode {
	case http.StatusOK, http.StatusCreated:
	case http.StatusNotFound, http.StatusConflict:
		return nil, answer.StatusCode, nil
	default:
		var why struct{ Message string }
		_ = json.Unmarshal(text, &why) // if it is not JSON, the status must do
		return fail(fmt.Errorf("%s %s: %s %s", method, at, answer.Status, why.Message))
	}

	var l lease
	if err := json.Unmarshal(text, &l); err != nil {
		return fail(err)
	}
	return &l, answer.StatusCode, nil
}

// Close implements lead.Store.
func (s *Store) Close() error {
	s.client.CloseIdleConnections()
	return nil
}
