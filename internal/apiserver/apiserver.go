// Package apiserver starts a real kube-apiserver over an etcd in this process, for tests of what speaks to one. There is
// no kubelet and no controller: objects are checked and kept, nothing runs. `make apiserver` builds it; without it
// the tests are skipped.
package apiserver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"downbeat.dev/internal/etcdtest"
)

const version = "1.34.1"

// patience is how long the server may take until it is ready; a quiet core needs 3 s.
const patience = 2 * time.Minute

// Server is a kube-apiserver with RBAC. Token belongs to a user who may do everything.
type Server struct {
	URL   string
	CA    []byte // PEM
	Token string

	client *http.Client
	stop   func()
}

// Dir is where `make apiserver` puts the server and the definitions of custom objects.
func Dir() string { return filepath.Join(treeRoot(), ".cache/kubernetes", version) }

// treeRoot looks for the tree's go.mod from the working directory upwards.
func treeRoot() string {
	for dir, _ := os.Getwd(); dir != "/"; dir = filepath.Dir(dir) {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(text), "module downbeat.dev\n") {
			return dir
		}
	}
	return "."
}

// Start starts a server that ends with the test.
func Start(t *testing.T) *Server {
	t.Helper()
	if _, err := os.Stat(binaryPath()); err != nil {
		t.Skip("no kube-apiserver: make apiserver builds one (6 minutes of one core)")
	}
	s, err := Open(t.TempDir(), etcdtest.Address(etcdtest.Open(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func binaryPath() string { return filepath.Join(Dir(), "kube-apiserver") }

// Open starts a server over an etcd at an address and waits until it is ready. Its files lie below dir; Close ends it.
func Open(dir, etcd string) (*Server, error) {
	ca, cert, key, err := makeCertificate()
	if err != nil {
		return nil, err
	}
	s := &Server{CA: ca, Token: "of-the-test-0123456789", client: &http.Client{}}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	s.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}

	tokens, certFile, keyFile := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, text := range map[string][]byte{tokens: []byte(s.Token + `,tester,1,"system:masters"` + "\n"), certFile: cert, keyFile: key} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return nil, err
		}
	}

	// Its port cannot be 0, so one that is free now is asked for, again if somebody takes it meanwhile.
	for range 5 {
		var port int
		if port, err = freePort(); err != nil {
			return nil, err
		}
		s.URL = fmt.Sprintf("https://127.0.0.1:%d", port)
		cmd := exec.Command(binaryPath(), "--etcd-servers=http://"+etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
			"--cert-dir="+dir, "--tls-cert-file="+certFile, "--tls-private-key-file="+keyFile, "--token-auth-file="+tokens, "--authorization-mode=RBAC",
			"--service-account-issuer=https://downbeat.test", "--service-account-key-file="+keyFile, "--service-account-signing-key-file="+keyFile,
			"--service-cluster-ip-range=10.0.0.0/24", "--watch-cache=false", "--v=0")
		if err = s.runServer(cmd); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// runServer starts the process and waits until it is ready.
func (s *Server) runServer(cmd *exec.Cmd) error {
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return err
	}

	// The process is killed and awaited, so that nobody leaves one behind or a file that it still writes.
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	s.stop = func() {
		_ = cmd.Process.Kill()
		<-ended
	}

	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		select {
		case <-ended:
			return fmt.Errorf("kube-apiserver has ended: %s", said.String())
		default:
		}

		if status, _, err := s.Do("GET", "/readyz", s.Token, "", nil); err == nil && status == http.StatusOK {
			return nil
		}
	}
	s.stop()
	return fmt.Errorf("kube-apiserver is not ready after %v: %s", patience, said.String())
}

// Close ends the server.
func (s *Server) Close() { s.stop() }

// Do asks the server as whom a token names and returns its status and answer.
func (s *Server) Do(method, path, token, contentType string, body []byte) (status int, answer []byte, err error) {
	r, err := http.NewRequest(method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}

	r.Header.Set("Authorization", "Bearer "+token)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}

	a, err := s.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer a.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(a.Body, 16<<20))
	return a.StatusCode, answer, err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// makeCertificate makes a certificate for 127.0.0.1 that signs itself, and its key.
func makeCertificate() (ca, cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}

	// The certificate is its own authority: the client trusts this one and no other.
	form := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &k.PublicKey, k)
	if err != nil {
		return nil, nil, nil, err
	}

	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, nil, nil, err
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), nil
}
