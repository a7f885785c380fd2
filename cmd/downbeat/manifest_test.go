//go:build linux

package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"downbeat.dev/deploy"
)

// manifest is what the test looks at in deploy/kubernetes.
type manifest struct {
	Kind string
	Data map[string]string
	Spec struct {
		Selector map[string]any // of a Service: labels; of others below matchLabels
		Template struct {
			Metadata struct{ Labels map[string]any }
			Spec     pod
		}
	}
}

// selects returns the labels that a Service, a budget or a set selects pods by.
func (m *manifest) selects() map[string]any {
	if labels, nested := m.Spec.Selector["matchLabels"].(map[string]any); nested {
		return labels
	}
	return m.Spec.Selector
}

// pod is what a pod runs, and with what rights.
type pod struct {
	Containers []container
	Token      *bool `yaml:"automountServiceAccountToken"`
	Security   struct {
		Seccomp struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
}

type container struct {
	Name  string
	Image string
	Args  []string
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	Readiness *probe `yaml:"readinessProbe"`
	Liveness  *probe `yaml:"livenessProbe"`
}

type probe struct {
	Get struct{ Path, Port, Scheme string } `yaml:"httpGet"`
}

// TestManifestHoldsTogether: the configuration in deploy/kubernetes is allowed, the commands there
// parse, and probes ask a port that there is on paths that answer.
func TestManifestHoldsTogether(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes/downbeat.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file, secret := filepath.Join(t.TempDir(), "downbeat.yaml"), filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	ran, kinds := map[string]bool{}, map[string]int{}
	var all []manifest
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m manifest
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if config := m.Data["downbeat.yaml"]; config != "" {
			if err := os.WriteFile(file, []byte(strings.Replace(config, "/etc/downbeat/secret/token", secret, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			if c, _, err := deploy.Parse("serve", []string{"-config", file}, nil); err != nil || c.TLS == "" || c.Cluster.TLSName == "" {
				t.Errorf("%v, tls %q for %q", err, c.TLS, c.Cluster.TLSName)
			}
		}
		kinds[m.Kind]++
		all = append(all, m)
		p := m.Spec.Template.Spec
		for _, c := range p.Containers {
			// Schedulers alone have something to ask the API server for: their Lease.
			if wantToken := c.Name == "scheduler"; p.Token == nil || *p.Token != wantToken || p.Security.Seccomp.Type != "RuntimeDefault" {
				t.Errorf("%v: want a service account's token %v and the runtime's seccomp profile", c.Args, wantToken)
			}
		}
		for _, c := range p.Containers {
			checkContainer(t, c, file)
			ran[c.Args[0]] = true
		}
	}
	for _, kind := range []string{"NetworkPolicy", "PodDisruptionBudget", "Service"} {
		if kinds[kind] < 3 {
			t.Errorf("the manifest has %d of kind %s, want one for each part at least", kinds[kind], kind)
		}
	}
	if len(ran) != 3 {
		t.Errorf("the manifest runs %v, want schedulers, backends and gateways", ran)
	}
	checkSelectors(t, all)
}

// checkSelectors: whatever selects pods finds those of some template.
func checkSelectors(t *testing.T, all []manifest) {
	for _, m := range all {
		if len(m.Spec.Selector) == 0 {
			continue
		}
		found := slices.ContainsFunc(all, func(other manifest) bool {
			labels := other.Spec.Template.Metadata.Labels
			for key, value := range m.selects() {
				if labels[key] != value {
					return false
				}
			}
			return len(labels) > 0
		})
		if !found {
			t.Errorf("%s selects %v, which no pod has", m.Kind, m.selects())
		}
	}
}

func checkContainer(t *testing.T, c container, file string) {
	all := commands()
	i := slices.IndexFunc(all, func(w command) bool { return w.name == c.Args[0] })
	if i < 0 {
		t.Fatalf("%v: no such command", c.Args)
	}
	args := append(slices.Clone(c.Args[1:]), "-h")
	if at := slices.Index(args, "-config"); at >= 0 {
		args[at+1] = file
	}
	if err := silently(t, func() error { return all[i].run(t.Context(), args) }); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("%v: %v", c.Args, err)
	}
	if _, tag, _ := strings.Cut(c.Image, ":"); tag == "" || tag == "latest" {
		t.Errorf("%v: image %q is not pinned", c.Args, c.Image)
	}
	for _, p := range []*probe{c.Readiness, c.Liveness} {
		if p == nil || p.Get.Path != "/healthz/ready" && p.Get.Path != "/v2/health/live" {
			t.Errorf("%v: probes %+v, %+v", c.Args, c.Readiness, c.Liveness)
			continue
		}
		if p.Get.Scheme != "HTTPS" {
			t.Errorf("%v: the probe speaks %q and the part TLS", c.Args, p.Get.Scheme)
		}
		open := false
		for _, port := range c.Ports {
			open = open || port.Name == p.Get.Port
		}
		if !open {
			t.Errorf("%v: nothing listens on %s", c.Args, p.Get.Port)
		}
	}
}
