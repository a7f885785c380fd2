package transfer

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
)

// TestMain lets this binary be the peers, as "downbeat bench transfer -serve" is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "peers" {
		fs := flag.NewFlagSet("peers", flag.ExitOnError)
		n, provider := fs.Int("serve", 0, ""), fs.String("provider", "", "")
		listen, size := fs.String("listen", "", ""), fs.Int("bytes", 0, "")
		fs.Parse(os.Args[2:])
		if err := Serve(os.Stdin, os.Stdout, *provider, *listen, *n, *size); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func small(t *testing.T, providers ...string) Config {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Config{Providers: providers, Peers: 3, Bytes: 20 << 10, Rounds: 2, Each: 5, Listen: "127.0.0.1", Child: []string{exe, "peers"}}
}

func TestRunMeasuresEveryProvider(t *testing.T) {
	c := small(t, "tcp", "shm", "local")
	var notes bytes.Buffer
	rows, err := Run(context.Background(), c, &notes)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 9 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		if r.P50 <= 0 || r.P99 < r.P50 {
			t.Errorf("%+v", r)
		}
		if r.Op == "incast" && (r.Peers != 3 || r.Bytes != 20<<10 || notes.Len() == 0 && (r.RefP50 <= 0 || r.RatioP50 <= 0)) {
			t.Errorf("%+v", r)
		}
	}
	var out bytes.Buffer
	if err := WriteJSON(&out, rows); err != nil {
		t.Fatal(err)
	}
	var back []map[string]any
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("provider op bytes peers p50_ns p99_ns reference ref_p50_ns ref_p99_ns ratio_p50 ratio_p99") {
		if _, ok := back[0][key]; !ok {
			t.Errorf("no key %s", key)
		}
	}
	if err := WriteTable(io.Discard, rows); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := WriteCSV(&out, rows); err != nil || strings.Count(out.String(), "\n") != 1+4*len(rows) {
		t.Errorf("csv: %v: %s", err, out.String())
	}
	out.Reset()
	if err := WriteFigure(&out, rows); err != nil || strings.Count(out.String(), "<polyline") != 6 || strings.Contains(out.String(), "NaN") {
		t.Errorf("figure: %v: %s", err, out.String())
	}
}

func TestUnknownProvider(t *testing.T) {
	if _, err := Run(context.Background(), small(t, "pigeon"), io.Discard); err == nil || !strings.Contains(err.Error(), "pigeon") {
		t.Errorf("got %v", err)
	}
}
