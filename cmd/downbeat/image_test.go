//go:build linux

package main

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"downbeat.dev/deploy"
)

// TestImageServesOutsideWhenAsked: the image's second configuration is allowed with a token and refused without,
// listens beyond loopback where clients come in and nowhere else, and the image has it where its text says.
func TestImageServesOutsideWhenAsked(t *testing.T) {
	const inImage = "/etc/downbeat/exposed.yaml"
	build, err := os.ReadFile("../../deploy/container/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(build), "/src/deploy/container/exposed.yaml "+inImage) {
		t.Errorf("the image does not have %s", inImage)
	}
	exposed := regexp.MustCompile(`(?m)^EXPOSE (.*)$`).FindStringSubmatch(string(build))

	text, err := os.ReadFile("../../deploy/container/exposed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	token, file := filepath.Join(dir, "token"), filepath.Join(dir, "exposed.yaml")
	if err := os.WriteFile(token, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	parseWith := func(token string) (deploy.Config, error) {
		with := strings.Replace(string(text), "/run/secrets/downbeat-token", token, -1)
		if err := os.WriteFile(file, []byte(with), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _, err := deploy.Parse("serve", []string{"-config", file}, nil)
		return c, err
	}

	c, err := parseWith(token)
	if err != nil {
		t.Fatal(err)
	}
	if secret, err := c.Token(); err != nil || secret == "" {
		t.Errorf("token %q, %v", secret, err)
	}
	if got := strings.Join(c.Exposed([]string{"listen", "data", "http", "grpc"}, ""), " "); got != "http grpc" {
		t.Errorf("listens beyond loopback for %s, want http grpc", got)
	}
	for _, addr := range []string{c.HTTP, c.GRPC} {
		if _, port, err := net.SplitHostPort(addr); err != nil || exposed == nil || !strings.Contains(exposed[1], port) {
			t.Errorf("%s: %v, the image exposes %v", addr, err, exposed)
		}
	}
	if _, err := parseWith(`""`); err == nil || !strings.Contains(err.Error(), "set token_file") {
		t.Errorf("without a token: %v, want that it is asked for", err)
	}
}
