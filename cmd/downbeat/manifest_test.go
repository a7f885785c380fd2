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
		Template struct {
			Spec struct{ Containers []container }
		}
	}
}

type container struct {
	Args  []string
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	Readiness *probe `yaml:"readinessProbe"`
	Liveness  *probe `yaml:"livenessProbe"`
}

type probe struct {
	Get struct{ Path, Port string } `yaml:"httpGet"`
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
	ran := map[string]bool{}
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
			if _, _, err := deploy.Parse("serve", []string{"-config", file}, nil); err != nil {
				t.Error(err)
			}
		}
		for _, c := range m.Spec.Template.Spec.Containers {
			checkContainer(t, c, file)
			ran[c.Args[0]] = true
		}
	}
	if len(ran) != 3 {
		t.Errorf("the manifest runs %v, want a scheduler, backends and gateways", ran)
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
	for _, p := range []*probe{c.Readiness, c.Liveness} {
		if p == nil || p.Get.Path != "/v2/health/ready" && p.Get.Path != "/v2/health/live" {
			t.Errorf("%v: probes %+v, %+v", c.Args, c.Readiness, c.Liveness)
			continue
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
