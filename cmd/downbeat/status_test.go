//go:build linux

package main

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStatusOverTLS: the commands that ask a gateway also reach one whose certificate a private authority signed.
func TestStatusOverTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("{}")) }))
	defer s.Close()
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600); err != nil {
		t.Fatal(err)
	}

	for _, command := range []string{"explain", "sessions", "plan show", "canary show"} {
		for flags, want := range map[string]string{
			"": "unknown authority", "-tls " + dir: "", "-tls-name example.com -tls " + dir: "",
			"-tls-name other.test -tls " + dir: "other.test", "-tls " + t.TempDir(): "ca.crt: no such file",
		} {
			line := command + " -o json -url " + s.URL + " " + flags
			err := silently(t, func() error { return runLine(t.Context(), strings.Fields(line)) })
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: got %v, want %q", line, err, want)
			}
		}
	}
}

// TestStatusRefusesAddresses: an address without a scheme is no URL, and the error says what is.
func TestStatusRefusesAddresses(t *testing.T) {
	for _, command := range []string{"explain", "sessions", "plan show", "plan apply", "canary show"} {
		for _, at := range []string{"127.0.0.1:8000", "ftp://host", "http://", "host", "http://a:1,b:2"} {
			err := silently(t, func() error { return runLine(t.Context(), strings.Fields(command+" -url "+at)) })
			if exitCode(t.Context(), err) != 2 || !strings.Contains(err.Error(), "-url") || !strings.Contains(err.Error(), "want http://HOST:PORT") {
				t.Errorf("%s -url %s: exit code %d: %v", command, at, exitCode(t.Context(), err), err)
			}
		}
	}
}
