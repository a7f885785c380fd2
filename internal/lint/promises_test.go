package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const promisesPage = "docs/decisions/0196-promises-and-their-tests.md"

var (
	promiseTest  = regexp.MustCompile(`(\S+) ((?:Test|Fuzz)\w+)`)
	promiseChaos = regexp.MustCompile(`chaos: ([\w-]+)`)
)

// TestPromisesHaveTests: every finding is on the page of promises, and each row there names an existing test.
func TestPromisesHaveTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("../..", promisesPage))
	if err != nil {
		t.Fatal(err)
	}
	experiments := readFolder(t, "bench/chaos", "*.go")
	folders, held := map[string]string{}, map[string]bool{}

	for row := range strings.Lines(string(page)) {
		cells := strings.Split(row, " | ")
		if len(cells) != 3 || cells[2] == "held by |\n" {
			continue
		}
		what := strings.TrimPrefix(cells[0], "| ")
		tests := promiseTest.FindAllStringSubmatch(cells[2], -1)
		if len(tests) == 0 {
			t.Errorf("%s names no test of %q", promisesPage, what)
		}
		held[what] = true

		for _, x := range tests {
			dir := strings.TrimPrefix(x[1], "downbeat") // the root package's
			if _, known := folders[dir]; !known {
				folders[dir] = readFolder(t, dir, "*_test.go")
			}
			if !strings.Contains(folders[dir], "func "+x[2]+"(") {
				t.Errorf("%s: %s has no %s, which %q names", promisesPage, x[1], x[2], what)
			}
		}
		for _, x := range promiseChaos.FindAllStringSubmatch(cells[2], -1) {
			if !strings.Contains(experiments, `"`+x[1]+`"`) {
				t.Errorf("%s: there is no experiment %s, which %q names", promisesPage, x[1], what)
			}
		}
	}

	for i := range 21 {
		if name := fmt.Sprintf("S%d", i+1); !held[name] {
			t.Errorf("%s has no row of %s", promisesPage, name)
		}
	}
	for i := range 14 {
		if name := fmt.Sprintf("B%d", i+1); !held[name] {
			t.Errorf("%s has no row of %s", promisesPage, name)
		}
	}
	for i := range 19 {
		if name := fmt.Sprintf("b%d", i+1); !held[name] {
			t.Errorf("%s has no row of %s", promisesPage, name)
		}
	}
	for c := 'A'; c <= 'P'; c++ {
		if !held[string(c)] {
			t.Errorf("%s has no row of %c", promisesPage, c)
		}
	}
}

// readFolder returns the concatenated files of a folder that match a pattern.
func readFolder(t *testing.T, dir, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("../..", dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
