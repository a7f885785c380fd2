package lint

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The present state of the table of Triton's features. A change may lower the number and then moves its bound, but
// not raise it.
const featuresMissingMax = 4

// TestFeaturesAreShown: every row of docs/TRITON.md has a known state, names an existing test, and gives a reason if
// something is missing or different.
func TestFeaturesAreShown(t *testing.T) {
	tests := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				tests[f.Name.Name] = true
			}
		}
	}

	text, err := os.ReadFile("../../docs/TRITON.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (.+?) \| (.+?) \| (.*?) ?\| (.+?) \|$`).FindAllStringSubmatch(string(text), -1)
	missing := 0
	for _, row := range rows[1:] {
		feature, state, why, shown := row[1], row[2], strings.TrimSpace(row[3]), regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(row[4], -1)
		if !slices.Contains([]string{"yes", "otherwise", "partly", "missing"}, state) {
			t.Errorf("%s: state %q: want yes, otherwise, partly or missing", feature, state)
		}
		if why == "" && state != "yes" {
			t.Errorf("%s: %s without a reason", feature, state)
		}
		if len(shown) == 0 {
			t.Errorf("%s: no test shows it", feature)
		}
		for _, name := range shown {
			if !tests[name[1]] {
				t.Errorf("%s: there is no %s", feature, name[1])
			}
		}
		if state == "missing" {
			missing++
		}
	}
	if len(rows) < 20 || missing > featuresMissingMax {
		t.Errorf("%d rows, %d of them missing: want 20 at least, and at most %d missing", len(rows), missing, featuresMissingMax)
	}
}

// TestTritonsFlagsHaveTheirs: the flags of downbeat that docs/TRITON.md names beside Triton's exist.
func TestTritonsFlagsHaveTheirs(t *testing.T) {
	text, err := os.ReadFile("../../docs/TRITON.md")
	if err != nil {
		t.Fatal(err)
	}
	table := string(text)
	knobs := readFolder(t, "deploy", "knobs.go") + readFolder(t, "cmd/downbeat", "serve.go")

	named := 0
	for _, row := range regexp.MustCompile(`(?m)^\| (.*--.*|shared memory of clients.*) \| (.*) \|$`).FindAllStringSubmatch(table, -1) {
		for _, flag := range regexp.MustCompile("`-([a-z-]+)").FindAllStringSubmatch(row[2], -1) {
			// A knob's flag is what follows the dot of its name, with dashes.
			key := strings.ReplaceAll(flag[1], "-", "_")
			if !strings.Contains(knobs, `"`+key+`"`) && !strings.Contains(knobs, `.`+key+`"`) {
				t.Errorf("docs/TRITON.md names -%s beside %s: there is no such flag", flag[1], row[1])
			}
			named++
		}
	}
	if named < 15 {
		t.Errorf("%d flags are named, want 15 at least", named)
	}
}
