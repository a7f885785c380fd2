// Package lint enforces the tree's rules: the imports of each package, what decisions must not use, and the sizes of
// files and functions. A rule exists only if a test here checks it.
package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	module       = "downbeat.dev"
	fileLinesMax = 800
	funcLinesMax = 70
)

// source is one parsed Go file. pkg is its directory, relative to the root, with slashes.
type source struct {
	path, pkg string
	test      bool
	generated bool
	file      *ast.File
	lines     int
}

var fset = token.NewFileSet()

func sources(t *testing.T) []source {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var all []source
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(rel)
		all = append(all, source{path: rel, pkg: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(rel, "_test.go"),
			generated: ast.IsGenerated(file), file: file, lines: strings.Count(string(text), "\n")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("found only %d Go files: the walk is broken", len(all))
	}
	return all
}

// within reports whether a package is the room or lies in it.
func within(pkg, room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") }

func imports(s source) []string {
	var out []string
	for _, i := range s.file.Imports {
		out = append(out, strings.Trim(i.Path.Value, `"`))
	}
	return out
}

// leaves lists modules, and packages of modules, that only some packages may import, since every importer depends on
// the whole module.
var leaves = map[string][]string{
	"go.etcd.io/etcd": {"core/lead/etcd", "internal/etcdtest"},

	// Gateways only pass a tracer on; these packages define and send spans.
	"go.opentelemetry.io/otel/attribute": {"core/observe/spans", "core/observe/tracing"},
	"go.opentelemetry.io/otel/codes":     {"core/observe/spans"},
	"go.opentelemetry.io/otel/sdk":       {"core/observe/tracing"},
	"go.opentelemetry.io/otel/exporters": {"core/observe/tracing"},
}

func TestLeafModules(t *testing.T) {
	for _, s := range sources(t) {
		for _, path := range imports(s) {
			for module, rooms := range leaves {
				if within(path, module) && !s.test && !slices.Contains(rooms, s.pkg) {
					t.Errorf("%s: %s imports %s, which only %v may", s.path, s.pkg, path, rooms)
				}
			}
		}
	}
}

// TestDecisionsArePure keeps core/sched and core/plan free of clocks, goroutines, locks and I/O,
// so that the live engine and the simulator run the same decisions. core/plan computes with
// time.Duration and may not read a clock (TestClockReaders); it has no maps, so none is iterated.
func TestDecisionsArePure(t *testing.T) {
	banned := []string{"C", "sync", "sync/atomic", "net", "os", "math/rand", "math/rand/v2", "crypto/rand", "unsafe", "log", "log/slog", "context", "runtime"}
	for _, s := range sources(t) {
		if s.pkg != "core/sched" && s.pkg != "core/plan" || s.test {
			continue
		}
		for _, path := range imports(s) {
			if slices.Contains(banned, path) || path == "time" && s.pkg == "core/sched" {
				t.Errorf("%s imports %q: decisions take now and return actions", s.path, path)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				t.Errorf("%s: goroutines and channels have no place in %s", fset.Position(n.Pos()), s.pkg)
			case *ast.MapType:
				if s.pkg == "core/plan" {
					t.Errorf("%s: a map has no order, and a plan must be the same for the same snapshot", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// TestClockReaders: packages that take now as an argument read no clock.
func TestClockReaders(t *testing.T) {
	for _, s := range sources(t) {
		pure := within(s.pkg, "core/sched") || within(s.pkg, "core/plan") || within(s.pkg, "core/profile") || within(s.pkg, "core/wire") || within(s.pkg, "core/model") || within(s.pkg, "core/arrivals") || within(s.pkg, "core/sim") || within(s.pkg, "core/swarm")
		if !pure || s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}, sel.Sel.Name) {
				t.Errorf("%s: time.%s: %s takes now as an argument", fset.Position(n.Pos()), sel.Sel.Name, s.pkg)
			}
			return true
		})
	}
}

func TestCgoOnlyInLeaves(t *testing.T) {
	for _, s := range sources(t) {
		leaf := within(s.pkg, "rdma") || within(s.pkg, "cuda") || within(s.pkg, "csrc") || within(s.pkg, "bench/transfer") || within(s.pkg, "bench/overhead")
		if !leaf && slices.Contains(imports(s), "C") {
			t.Errorf("%s: cgo belongs in rdma, cuda and csrc", s.path)
		}
	}
}

func TestRawAtomics(t *testing.T) {
	raw := regexp.MustCompile(`^(Add|Load|Store|Swap|CompareAndSwap|And|Or)(Int32|Int64|Uint32|Uint64|Uintptr|Pointer)$`)
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "atomic" && raw.MatchString(sel.Sel.Name) && !mapped(s.pkg) {
				t.Errorf("%s: atomic.%s: use the atomic types", fset.Position(n.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
}

// mapped lists the packages whose atomics live in memory shared with another process or with C,
// where the atomic types cannot be declared.
func mapped(pkg string) bool { return within(pkg, "rdma") || within(pkg, "cuda") }

func TestSizes(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		if s.lines > fileLinesMax {
			t.Errorf("%s has %d lines, the limit is %d: split it by concern", s.path, s.lines, fileLinesMax)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			if n := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1; n > funcLinesMax {
				t.Errorf("%s: %s has %d lines, the limit is %d", fset.Position(f.Pos()), f.Name.Name, n, funcLinesMax)
			}
		}
	}
}

func TestPackageNames(t *testing.T) {
	banned := []string{"util", "utils", "common", "helpers", "helper", "misc", "types", "manager", "shared", "base"}
	for _, s := range sources(t) {
		if name := s.file.Name.Name; slices.Contains(banned, strings.TrimSuffix(name, "_test")) {
			t.Errorf("%s: package %s says nothing; put the code with its user", s.path, name)
		}
	}
}

// TestPackageComments: every package has a comment that says what it does and what it does not do.
func TestPackageComments(t *testing.T) {
	documented, seen := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		seen[s.pkg] = true
		if s.file.Doc != nil || s.generated {
			documented[s.pkg] = true
		}
	}
	for pkg := range seen {
		if !documented[pkg] {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

// TestTopLevel: the root gets nothing new without a decision record.
func TestTopLevel(t *testing.T) {
	want := []string{"backend", "bench", "cmd", "core", "csrc", "cuda", "deploy", "docs", "frontend", "internal", "models", "rdma",
		"examples", "go.mod", "go.sum", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", "bin", "out"}
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !strings.HasSuffix(e.Name(), ".go") && !slices.Contains(want, e.Name()) {
			t.Errorf("%s does not belong at the root", e.Name())
		}
	}
}
