package lint

import (
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The present state of the tree. A change may lower a number and then moves its bound, but not raise it.
const (
	nounsMissingMax      = 75 // nouns of the serving rooms' exported types that are not in the glossary
	architectureLinesMax = 250
)

// glossaryPackages are the packages whose nouns must all be in the glossary: those that programs use, and those that
// decide.
var glossaryPackages = []string{".", "frontend", "frontend/app", "core/model", "core/sched", "core/plan"}

// plainWords are words of Go, not of the field.
var plainWords = []string{"error", "option", "stat", "status", "info", "id", "gpuid", "set"}

var wordPattern = regexp.MustCompile(`[A-Z]+(?:[^a-zA-Z]|$)|[A-Z][a-z0-9]+|[A-Z]+`)

// TestGlossaryHoldsTheNouns: the last word of a face's exported type is in the glossary of docs/ARCHITECTURE.md; that
// of another serving room is there or elsewhere on the page. The page also stays short enough to be read.
func TestGlossaryHoldsTheNouns(t *testing.T) {
	text, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > architectureLinesMax {
		t.Errorf("docs/ARCHITECTURE.md has %d lines, the limit is %d", n, architectureLinesMax)
	}
	page := strings.ToLower(string(text))
	_, glossary, _ := strings.Cut(page, "\n## words\n")
	defined := regexp.MustCompile(`[a-z]+`).FindAllString(glossary, -1)
	seen := 0

	missing := map[string]string{}
	for _, s := range sources(t) {
		served := within(s.pkg, "core") || within(s.pkg, "frontend") || within(s.pkg, "backend") || within(s.pkg, "rdma") || s.pkg == "."
		if !served || s.test || s.generated {
			continue
		}
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, spec := range g.Specs {
				name := spec.(*ast.TypeSpec).Name.Name
				words := wordPattern.FindAllString(name, -1)
				if !ast.IsExported(name) || len(words) == 0 {
					continue
				}
				noun := strings.ToLower(words[len(words)-1])
				if slices.Contains(glossaryPackages, s.pkg) {
					seen++
					stem := strings.TrimSuffix(noun, "s")
					if !slices.Contains(plainWords, noun) && !slices.Contains(plainWords, stem) && !slices.ContainsFunc(defined, func(w string) bool { return w == noun || w == stem || w == stem+"s" }) {
						t.Errorf("the glossary of docs/ARCHITECTURE.md does not say what %q is: %s.%s", noun, s.pkg, name)
					}
				}
				if !strings.Contains(page, strings.TrimSuffix(noun, "s")) {
					missing[noun] = s.pkg + "." + name
				}
			}
		}
	}

	if seen < 100 {
		t.Errorf("only %d exported types of %v were looked at", seen, glossaryPackages)
	}
	var nouns []string
	for noun := range missing {
		nouns = append(nouns, noun)
	}
	slices.Sort(nouns)
	t.Logf("%d nouns of exported types are not in docs/ARCHITECTURE.md: %v", len(nouns), nouns)
	if len(nouns) > nounsMissingMax {
		t.Errorf("%d nouns of exported types are not in docs/ARCHITECTURE.md, the bound is %d; run with -v, which lists them", len(nouns), nounsMissingMax)
	}
}
