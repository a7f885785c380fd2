package lint

import (
	"bytes"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The present state of the tree (docs/decisions/0100). A change may improve a count and then moves its bound, but not
// worsen it. The first aims, 4 lines of comment and 6 blank lines per hundred lines of code in bodies, 100 walls and 40
// such names, are met.
const (
	proseCommentsMin = 4.8
	proseBlanksMin   = 9.1
	proseWallsMax    = 0
	proseNamesMax    = 13 // unexported names of functions in three packages or more: close, add, take
	wallLines        = 18 // a body of this many lines without a comment or a blank line is a wall
)

// prose counts comments, blank lines, walls and names of functions.
type prose struct {
	code, comments, blanks int
	walls                  []string
	packages               map[string]map[string]bool // by unexported function name
}

// addName notes that a package has a function of that name.
func (p *prose) addName(name, dir string) {
	if ast.IsExported(name) || name == "main" || name == "init" {
		return
	}
	if p.packages[name] == nil {
		p.packages[name] = map[string]bool{}
	}
	p.packages[name][dir] = true
}

// common lists the names that three packages or more have: each needs a look at its receiver to be understood.
func (p *prose) common() (names []string) {
	for name, in := range p.packages {
		if len(in) >= 3 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// add counts the lines of one body, without its braces.
func (p *prose) add(name string, body [][]byte) {
	comments, blanks := 0, 0
	for _, line := range body {
		switch line = bytes.TrimSpace(line); {
		case len(line) == 0:
			blanks++
		case bytes.HasPrefix(line, []byte("//")):
			comments++
		}
	}

	p.comments += comments
	p.blanks += blanks
	p.code += len(body) - comments - blanks
	if len(body) >= wallLines && comments+blanks == 0 {
		p.walls = append(p.walls, name)
	}
}

func TestProse(t *testing.T) {
	p := prose{packages: map[string]map[string]bool{}}
	for _, s := range sources(t) {
		if s.test || s.generated {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../..", s.path))
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.Split(text, []byte("\n"))
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			p.addName(f.Name.Name, filepath.Dir(s.path))
			first, last := fset.Position(f.Body.Lbrace).Line, fset.Position(f.Body.Rbrace).Line
			if last-first > 1 {
				p.add(s.path+" "+f.Name.Name, lines[first:last-1])
			}
		}
	}

	comments, blanks := 100*float64(p.comments)/float64(p.code), 100*float64(p.blanks)/float64(p.code)
	t.Logf("per hundred lines of code in bodies: %.2f of comment, %.2f blank; %d walls: %v; %d names in three packages or more: %v",
		comments, blanks, len(p.walls), p.walls, len(p.common()), p.common())
	if comments < proseCommentsMin || blanks < proseBlanksMin || len(p.walls) > proseWallsMax || len(p.common()) > proseNamesMax {
		t.Errorf("want at least %.2f lines of comment, %.2f blank, at most %d walls and %d names in three packages or more; run with -v, which lists them",
			proseCommentsMin, proseBlanksMin, proseWallsMax, proseNamesMax)
	}
}

var pageLink = regexp.MustCompile(`\]\((\d{4}-[a-z0-9-]+\.md)\)`)

// TestDecisionsAreIndexed: the index of decisions names every page once, and nothing else.
func TestDecisionsAreIndexed(t *testing.T) {
	index, err := os.ReadFile("../../docs/decisions/README.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]int{}
	for _, m := range pageLink.FindAllSubmatch(index, -1) {
		named[string(m[1])]++
	}
	pages, err := filepath.Glob("../../docs/decisions/[0-9]*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages of decisions: %v", err)
	}
	for _, page := range pages {
		if name := filepath.Base(page); named[name] != 1 {
			t.Errorf("docs/decisions/README.md names %s %d times, want once", name, named[name])
		}
		delete(named, filepath.Base(page))
	}
	for name := range named {
		t.Errorf("docs/decisions/README.md names %s, which is not there", name)
	}
}
