package clients

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	shopToken = "shop-0123456789abcdef"
	labToken  = "lab--0123456789abcdef"
)

const twoClients = `clients:
  - name: shop
    token: ` + shopToken + `
    models: [simple, sum]
    rate: 10
    in_flight: 4
  - name: lab
    token: ` + labToken + `
`

func TestFileIsRead(t *testing.T) {
	all, err := parseClients([]byte(twoClients), "")
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	shop, lab := all[0], all[1]
	if shop.name != "shop" || shop.token != shopToken || shop.limits.rate != 10 || shop.limits.inFlight != 4 {
		t.Errorf("%+v", shop)
	}
	if !shop.limits.allowsModel("sum") || shop.limits.allowsModel("other") || !lab.limits.allowsModel("other") {
		t.Error("the models of shop are two, and of lab all")
	}
}

// TestFileErrors shows that errors give the line and the field, and that none repeats a token.
func TestFileErrors(t *testing.T) {
	for change, want := range map[string]string{
		"name: shop|":                          `line 3: clients[0].name: missing`,
		"name: shop|nam: shop":                 `line 2: clients[0]: "nam": no such field`,
		"name: lab|name: shop":                 `line 7: clients[1].name: "shop" is another client's`,
		"name: shop|name: s hop":               `line 2: clients[0].name: want printable`,
		labToken + "|" + shopToken:             `line 7: clients[1].token: it is another client's`,
		shopToken + "|short":                   `line 3: clients[0].token: 5 bytes: want a text of 16 to 256`,
		"rate: 10|rate: many":                  `line 5: clients[0].rate: "many": want requests per second`,
		"rate: 10|rate: NaN":                   `line 5: clients[0].rate: "NaN": want`,
		"rate: 10|rate: 0":                     `line 5: clients[0].rate: "0": want`,
		"in_flight: 4|in_flight: 0.5":          `line 6: clients[0].in_flight: "0.5": want requests at a time`,
		"in_flight: 4|rate: 5":                 `line 6: clients[0].rate: stands there twice`,
		"models: [simple, sum]|models: []":     `line 4: clients[0].models: 0 entries: want 1 to 4096`,
		"models: [simple, sum]|models: all":    `line 4: clients[0].models: want a list`,
		"models: [simple, sum]|models: [[]]":   `line 4: clients[0].models[0]: 0 bytes`,
		"clients:|people:":                     `line 1: the file: "people": no such field`,
		"in_flight: 4|in_flight: 4\n---\nx: y": `line 7: `,
		"rate: 10|rate: [":                     `line `,
	} {
		from, to, _ := strings.Cut(change, "|")
		text := strings.Replace(twoClients, from, to, 1)
		if strings.Contains(change, "---") {
			text = twoClients + "---\nclients: []\n"
			want = "the file: has a second document"
		}
		if text == twoClients {
			t.Fatalf("%q changes nothing", change)
		}
		switch _, err := parseClients([]byte(text), ""); {
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%q: %v, want %q", change, err, want)
		case strings.Contains(err.Error(), shopToken) || strings.Contains(err.Error(), labToken):
			t.Errorf("%q: the error tells a token: %v", change, err)
		}
	}

	if _, err := parseClients([]byte(twoClients), labToken); err == nil || !strings.Contains(err.Error(), "line 7: clients[1].token: it is the cluster's") {
		t.Errorf("the cluster's token as a client's: %v", err)
	}
	if _, err := parseClients(nil, ""); err == nil || !strings.Contains(err.Error(), "line 1: the file is empty") {
		t.Errorf("an empty file: %v", err)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, fileSizeMax+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readFile(large); err == nil || !strings.Contains(err.Error(), "larger than 1048576 bytes") {
		t.Errorf("a large file: %v", err)
	}
}

// FuzzClientsFile shows that for any file parsing either fails or returns clients within every bound.
func FuzzClientsFile(f *testing.F) {
	f.Add([]byte(twoClients))
	f.Add([]byte("clients: [&a {name: x, token: *a}]"))
	f.Add([]byte("clients:\n- {<<: {name: x}, token: 0123456789abcdef, rate: 1e400}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 {
			return
		}
		all, err := parseClients(text, "the token of the cluster")
		if err != nil {
			if all != nil {
				t.Error("an error, and clients")
			}
			return
		}

		names, tokens := map[string]bool{}, map[string]bool{}
		for _, e := range all {
			if names[e.name] || tokens[e.token] || e.name == "" || len(e.name) > nameMax || len(e.token) < tokenMin || len(e.token) > tokenMax {
				t.Errorf("%+v", e)
			}
			names[e.name], tokens[e.token] = true, true
			if l := e.limits; l.models != nil && len(l.models) == 0 || l.rate != 0 && !(l.rate >= rateMin && l.rate <= rateMax) || l.inFlight < 0 {
				t.Errorf("%+v", l)
			}
		}
		if len(all) < 1 || len(all) > clientsMax {
			t.Errorf("%d clients", len(all))
		}
	})
}
