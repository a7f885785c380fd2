package deploy

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"downbeat.dev/internal/tlstest"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "downbeat.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultIsValidAndRoundTrips(t *testing.T) {
	if err := Default().Check(); err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Emulate, want.TokenFile = 8, "secret"
	got, err := Load(write(t, want.YAML()))
	if err != nil || got != want {
		t.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestFlagsWinOverTheFile(t *testing.T) {
	path := write(t, "emulate: 4\nhttp: 127.0.0.1:9000\n")
	for _, args := range [][]string{{"-config", path, "-emulate", "2", "word"}, {"--emulate=2", "--config=" + path, "word"}} {
		c, rest, err := Parse("serve", args, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.Emulate != 2 || c.HTTP != "127.0.0.1:9000" || len(rest) != 1 {
			t.Errorf("%v: emulate=%d http=%s rest=%v", args, c.Emulate, c.HTTP, rest)
		}
	}
}

func TestBadConfigNamesTheFieldAndTheLine(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"unknown key":  {"http: 127.0.0.1:1\nhtpp: x\n", "line 2: htpp: no such key; the keys are listen, scheduler, http, grpc"},
		"a map":        {"accuracy:\n  floors: {vehicle: 0.9}\n", "line 2: want a text: lists are one text too, with commas"},
		"a sequence":   {"repository:\n  load_models: [a, b]\n", "line 2: want a text"},
		"in a section": {"cluster:\n  elections: x\n", "line 2: elections: no such key; the keys are election, tls_name, epoch, session_spare"},
		"wrong type":   {"\nemulate: many\n", "line 2: cannot unmarshal"},
		"no port":      {"http: localhost\n", `http: "localhost" is not allowed: want host:port`},
		"large port":   {"http: 127.0.0.1:99999\n", `http: "127.0.0.1:99999" is not allowed: want host:port, the port from 0 to 65535`},
		"no models":    {"models: ''\n", `models: "" is not allowed: want a directory`},
		"provider":     {"provider: udp\n", `provider: "udp" is not allowed: want one of auto`},
		"negative":     {"executors: -1\n", "executors: -1 is not allowed: want 0 to 1024"},
		"prompt":       {"prompt: 1.5\n", "prompt: 1.5 is not allowed: want 0 to 1"},
		"learn share":  {"learn_share: 0.6\n", "learn_share: 0.6 is not allowed: want 0 to 0.5"},
		"no number":    {"prompt: .nan\n", "prompt: NaN is not allowed"},
		"exposed":      {"listen: 0.0.0.0:7070\n", "set token_file"},
		"queue":        {"queue_max: 0\n", "queue_max: 0 is not allowed"},
		"log level":    {"log_level: loud\n", "log_level"},
		"twice":        {"http: 127.0.0.1:1\nhttp: 127.0.0.1:2\n", "already defined"},
		"not a config": {"[1, 2\n", "line"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Parse("serve", []string{"-config", write(t, tc.text)}, nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to say %q", err, tc.want)
			}
		})
	}
	if _, _, err := Parse("serve", []string{"-config", "/nonexistent"}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
}

// TestDocumentedConfigIsAllowed loads the file that docs/DEPLOYMENT.md shows.
func TestDocumentedConfigIsAllowed(t *testing.T) {
	text, err := os.ReadFile("../docs/DEPLOYMENT.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("```yaml\n"))
	text, _, found := bytes.Cut(text, []byte("```"))
	if !found {
		t.Fatal("no configuration in the document")
	}
	c, err := Load(write(t, strings.ReplaceAll(string(text), "\n   ", "\n")[3:]))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err != nil || c.TLS == "" {
		t.Errorf("%v, tls: %q", err, c.TLS)
	}
	for fields, want := range map[string]string{"listen http grpc data": "listen http grpc data metrics", "listen": "listen metrics", "data": "data metrics"} {
		if got := strings.Join(c.Exposed(strings.Fields(fields), "0.0.0.0:8002"), " "); got != want {
			t.Errorf("%s: %q are open to other hosts, want %q", fields, got, want)
		}
	}
	if got := c.Exposed([]string{"listen"}, "127.0.0.1:8002"); len(got) != 1 {
		t.Errorf("metrics on loopback: %q", got)
	}
}

// TestBadFlagsSayWhatIsAllowed: one error, and no page of help around it.
func TestBadFlagsSayWhatIsAllowed(t *testing.T) {
	for _, tc := range []struct{ command, args, want string }{
		{"serve", "-executors 1.5", "want a whole number"},
		{"serve", "-prompt x", "want a number"},
		{"serve", "-nonsense", "downbeat serve -h lists the flags"},
		{"infer", "-wait 5", "want a duration"},
		{"infer", "-http 127.0.0.1:1", "-http"}, // infer asks the scheduler
		{"scheduler", "-gpu", "-gpu"},
		{"gateway", "-listen 127.0.0.1:1", "-listen"},
	} {
		wait := func(fs *flag.FlagSet) { fs.Duration("wait", 0, "") }
		if _, _, err := Parse(tc.command, strings.Fields(tc.args), wait); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %s: got %v, want it to say %q", tc.command, tc.args, err, tc.want)
		}
	}
	if _, _, err := Parse("serve", []string{"-config", ""}, nil); err == nil || !strings.Contains(err.Error(), "a file name must follow") {
		t.Errorf("an empty file name, a variable that is not set say, must not mean the defaults: %v", err)
	}
}

// TestAWrongValueIsOfTheLineOrTheFile: a flag that is not allowed is a wrong command line, a file that is not allowed
// is not. A flag may mend the file.
func TestAWrongValueIsOfTheLineOrTheFile(t *testing.T) {
	wrong := write(t, "queue_max: -5\n")
	for _, tc := range []struct {
		args        []string
		fails, line bool
	}{
		{[]string{"-queue-max", "-5"}, true, true},
		{[]string{"-config", wrong}, true, false},
		{[]string{"-config", wrong, "-http", "nonsense"}, true, false},
		{[]string{"-config", wrong, "-queue-max", "5"}, false, false},
		{[]string{"-config="}, true, true},
	} {
		_, _, err := Parse("serve", tc.args, nil)
		var line UsageError
		if (err != nil) != tc.fails || errors.As(err, &line) != tc.line {
			t.Errorf("%q: %T %v: want an error: %v, of the command line: %v", tc.args, err, err, tc.fails, tc.line)
		}
	}
}

// TestClientsFindTheirScheduler: each command that asks a scheduler can be told where it is without a file.
func TestClientsFindTheirScheduler(t *testing.T) {
	for _, command := range []string{"backend", "gateway", "infer", "load", "rollback"} {
		args := []string{"-scheduler", "10.0.0.1:7070", "-data", "127.0.0.1:7171", "-provider", "tcp", "vehicle-s", "3"}
		c, rest, err := Parse(command, args, nil)
		if err != nil || c.Scheduler != "10.0.0.1:7070" || c.Data != "127.0.0.1:7171" || c.Provider != "tcp" || len(rest) != 2 {
			t.Errorf("%s: scheduler %q, data %q, provider %q, words %q: %v", command, c.Scheduler, c.Data, c.Provider, rest, err)
		}
	}
}

func TestToken(t *testing.T) {
	c := Default()
	if tok, err := c.Token(); tok != "" || err != nil {
		t.Errorf("got %q, %v", tok, err)
	}
	c.TokenFile = write(t, "0123456789abcdef\n")
	if tok, err := c.Token(); tok != "0123456789abcdef" || err != nil {
		t.Errorf("got %q, %v", tok, err)
	}
	c.TokenFile = write(t, "short")
	if _, err := c.Token(); err == nil || !strings.Contains(err.Error(), "5 characters, want 16 to 256") {
		t.Errorf("a short secret: %v", err)
	}
}

func TestTLSFiles(t *testing.T) {
	c := Default()
	if s, err := c.PeerTLS(); s != nil || err != nil {
		t.Errorf("got %v %v", s, err)
	}
	c.TLS = t.TempDir()
	if _, err := c.PeerTLS(); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("got %v, want it to name the file that is missing", err)
	}
	if err := os.WriteFile(filepath.Join(c.TLS, "ca.crt"), []byte("not pem"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PeerTLS(); err == nil || !strings.Contains(err.Error(), "no PEM certificate") {
		t.Errorf("got %v", err)
	}
}

// TestTLSName: one certificate serves parts whose hosts are not known beforehand.
func TestTLSName(t *testing.T) {
	c := Default()
	c.TLS, c.Cluster.TLSName = t.TempDir(), "downbeat"
	writeCertificate(t, c.TLS)
	s, err := c.PeerTLS()
	if err != nil || s.ServerName != "downbeat" {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []string{"a b", "host:7070", strings.Repeat("x", 300)} {
		c.Cluster.TLSName = bad
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), "tls_name") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// writeCertificate makes an authority that is its own only host.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	own := tlstest.SelfSigned(t).Certificates[0]
	secret, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]})
	for name, text := range map[string][]byte{"ca.crt": cert, "tls.crt": cert, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
