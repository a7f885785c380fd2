package figure

import (
	"bytes"
	"encoding/csv"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"downbeat.dev/bench/chart"
)

func drawing(claims ...Claim) *Drawing {
	d := &Drawing{Header: []string{"x", "y"}, Claims: claims}
	d.Add("a, b", 1.23456789)
	p := chart.Panel{Title: "t"}
	p.Add("line", 0, 1)
	p.Add("line", 1, 2)
	d.Panels = []chart.Panel{p}
	return d
}

// TestFiguresReplaceTheirOwnClaims: a figure that is made again changes its lines and nobody else's.
func TestFiguresReplaceTheirOwnClaims(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	first, second := Claim{"what, exactly", "2×", "1.9×", Differs, "why"}, Claim{"b", "", "3", NoNumber, ""}
	for id, claims := range map[string][]Claim{"f2": {first}, "f10": {second, second}} {
		if err := drawing(claims...).Write(dir, id); err != nil {
			t.Fatal(err)
		}
	}
	again := Claim{"what, exactly", "2×", "2.1×", Holds, ""}
	if err := drawing(again).Write(dir, "f2"); err != nil {
		t.Fatal(err)
	}

	got, err := ReadClaims(dir)
	if want := map[string][]Claim{"f2": {again}, "f10": {second, second}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: claims are %v, want %v", err, got, want)
	}
	text, err := os.ReadFile(filepath.Join(dir, "claims.csv"))
	if err != nil || strings.Index(string(text), "f2,") > strings.Index(string(text), "f10,") {
		t.Errorf("%v: f10 stands before f2:\n%s", err, text)
	}

	f, err := os.Open(filepath.Join(dir, "f2.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := csv.NewReader(f).ReadAll()
	if want := [][]string{{"x", "y"}, {"a, b", "1.234568"}}; err != nil || !reflect.DeepEqual(records, want) {
		t.Errorf("%v: %v, want %v", err, records, want)
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "f2.svg")); err != nil || !bytes.Contains(svg, []byte("polyline")) {
		t.Errorf("%v: no picture", err)
	}
	if _, err := ReadClaims(t.TempDir()); err != nil {
		t.Errorf("a directory without figures: %v", err)
	}
}

// TestPageListsWhatIsThere: figures with their files and claims, others with their command.
func TestPageListsWhatIsThere(t *testing.T) {
	root := t.TempDir()
	if err := drawing(Claim{"the most", "2×", "1.9×", Differs, "another host"}).Write(filepath.Join(root, "results"), "f2"); err != nil {
		t.Fatal(err)
	}
	papers := []Paper{{Name: "p", Title: "Paper", Notes: []string{"a note"}, Entries: []Entry{
		{ID: "f2", Title: "speed", Command: "run f2", Dir: "results", Where: "virtual time"},
		{ID: "f3", Title: "heat", Command: "run f3", Dir: "results", Where: "a GPU"},
	}}}

	var page bytes.Buffer
	if err := WritePage(&page, root, papers); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"## Paper\n",
		"| f2 | speed | virtual time | `run f2` | [csv](../results/f2.csv), [svg](../results/f2.svg) |\n",
		"| f3 | heat | a GPU | `run f3` | not made |\n",
		"| f2 | the most | 2× | 1.9× | differs: another host |\n",
		"\n- a note\n",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, page.String())
		}
	}
}
