package lint

import (
	"bytes"
	"go/ast"
	"go/build"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// engineNumbers lists every number constant of core/engine, with what it bounds or encodes. None decides when a batch
// runs, which request is served, or which GPU serves it: core/sched, core/plan and core/limits hold those, and the
// engine calls their functions (decision 0190).
var engineNumbers = map[string]string{
	// Memory and largest numbers.
	"PartitionsMax": "locks, one bit each of a word", "FrontendsMax": "sessions", "GPUsMax": "GPUs", "ModelsMax": "ids of models",
	"RequestsMaxDefault": "live requests of a partition", "blockRequests": "memory for requests", "newBlocks": "the same: not much more than there may be", "takeRequests": "the same: small ones lie alone",
	"windowsMax": "memory for windows", "sweepLeast": "memory for profiles", "ringSize": "batches in timelines", "delays": "samples kept", "workNumbers": "bits of a work's number",
	"ownersMax": "bits of a work's number", "commandsMax": "commands at a time", "stepsMost": "steps of a plan in one go",
	"answers": "bytes up to the end of a cache line", "flight": "the same", "gpu": "the same", "modelCount": "the same",
	"reportsPrefetched": "memory that is loaded ahead", "prefetchFlights": "the same, per report", "grantsPrefetched": "memory that is loaded ahead", "prefetchGrants": "the same, per grant",
	"hugePage": "of the kernel", "checkOptions": "what options may ask for", "viewPlacement": "bytes that a backend may say, so that sums hold", "addModels": "the same",
	"checkOffer": "what a backend may say", "New": "bytes of a random seed",

	// How long a lock is held or a thread sleeps, and intervals of checks.
	"houseEvery": "of watchdogs and renewals", "spinDefault": "lateness of timers", "spinShare": "of a core", "lateMost": "lateness of timers",
	"learnLateness": "lateness of timers", "sleepMax": "of a thread", "roundsMany": "until a turn reads the clock again", "purgeStep": "requests per lock",
	"purgeRequests": "requests per lock", "lookedAtOnce": "looks per lock", "fewVariants": "memory of a family", "restShare": "of a core for prices", "holdFor": "a hold ends by itself soon after its renewals do",

	// Lifetimes of names and commands.
	"commandMost": "that a backend may take for a command",
	"keptMax":     "that a model without backends is known", "restMin": "that a forgotten model's id stands for none",

	// Bits and units of messages and tables.
	"commandVersion": "of the protocol", "stepBits": "of a step's number", "wireID": "bits of a batch's number",
	"nextGen": "bits of a generation", "Done": "bits of a batch's number", "Submit": "bits of a word", "findEntry": "a hash of an id",
	"microsecond": "a request's deadline on the wire", "sleeper": "bytes that the kernel reads", "open": "the same", "sleep": "the same",
	"percentiles": "permille",

	// Reports for operators.
	"markEvery": "spans of explanations", "marksKept": "the same", "lately": "the same", "lastMinute": "the same",
	"explainVariants": "milliseconds", "explainSpare": "milliseconds", "whyLeftOut": "digits", "recordPaid": "seconds",
}

// engineJudges lists the functions of core/engine that compare numbers with a fraction, with the reason: they
// validate outside input, or report decisions.
var engineJudges = map[string]string{
	"checkOptions": "options", "checkFloors": "options", "checkOffer": "what a backend says",
}

// TestEngineDecidesNothing: a decision compares with a threshold or weighs one value against another. So core/engine
// contains no number but 0, 1, 2 and those listed, and compares no rates, shares, prices or accuracies.
func TestEngineDecidesNothing(t *testing.T) {
	var files []*ast.File
	named, spelt := map[string]bool{}, 0
	for _, s := range sources(t) {
		if s.pkg != "core/engine" || s.test || !builtHere(t, s.path) {
			continue
		}
		files = append(files, s.file)
		for _, d := range s.file.Decls {
			spelt += checkNumbers(t, d, named)
		}
	}
	if len(files) < 10 || spelt == 0 {
		t.Fatalf("%d files with %d numbers: the walk is broken", len(files), spelt)
	}
	for name, why := range engineNumbers {
		if !named[name] || why == "" {
			t.Errorf("engineNumbers lists %s (%q), which core/engine does not have, or without a reason", name, why)
		}
	}

	judges := checkComparisons(t, files)
	for name, why := range engineJudges {
		if !slices.Contains(judges, name) || why == "" {
			t.Errorf("engineJudges lists %s (%q), which compares nothing with a fraction, or without a reason", name, why)
		}
	}
}

// builtHere reports whether a file is part of the package on this system.
func builtHere(t *testing.T, path string) bool {
	dir, name, _ := cutLast(path)
	ok, err := build.Default.MatchFile("../../"+dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// cutLast splits a path before its last element.
func cutLast(path string) (dir, name string, ok bool) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// checkNumbers checks the numbers of a declaration against the list, and returns how many there are.
func checkNumbers(t *testing.T, d ast.Decl, named map[string]bool) (spelt int) {
	note := func(name string, n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			number := numberOf(n)
			if number == "" {
				return true
			}
			spelt++
			if slices.Contains([]string{"0", "1", "2"}, number) {
				return true
			}
			if _, listed := engineNumbers[name]; listed {
				named[name] = true
				return true
			}
			t.Errorf("%s: %s spells %s: what decides stands in core/sched, core/plan or core/limits; what only bounds memory, time or a message's bits is listed in engineNumbers", fset.Position(n.Pos()), name, number)
			return true
		})
	}

	switch d := d.(type) {
	case *ast.FuncDecl:
		note(d.Name.Name, d)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				note(spec.Names[0].Name, spec)
			case *ast.TypeSpec:
				note(spec.Name.Name, spec.Type)
			}
		}
	}
	return spelt
}

// numberOf returns the number that a node spells, or the unit of time: a duration of an hour needs no other digit.
func numberOf(n ast.Node) string {
	switch n := n.(type) {
	case *ast.BasicLit:
		if n.Kind == token.INT || n.Kind == token.FLOAT {
			return n.Value
		}
	case *ast.SelectorExpr:
		units := []string{"Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}
		if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(units, n.Sel.Name) {
			return "time." + n.Sel.Name
		}
	}
	return ""
}

// checkComparisons finds the functions that compare floating-point numbers, by an operator, min, max, or cmp.Compare,
// and reports those that are not listed.
func checkComparisons(t *testing.T, files []*ast.File) (judges []string) {
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", exportsOf(t, "./core/engine"))}
	if _, err := conf.Check(module+"/core/engine", fset, files, info); err != nil {
		t.Fatal(err)
	}

	fractional := func(x ast.Expr) bool {
		b, ok := info.TypeOf(x).Underlying().(*types.Basic)
		return ok && b.Info()&types.IsFloat != 0
	}
	for _, file := range files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				var compared []ast.Expr
				switch n := n.(type) {
				case *ast.BinaryExpr:
					if slices.Contains([]token.Token{token.LSS, token.LEQ, token.GTR, token.GEQ}, n.Op) {
						compared = []ast.Expr{n.X}
					}
				case *ast.CallExpr:
					if name := calledName(n); name == "min" || name == "max" || name == "cmp.Compare" || name == "cmp.Less" {
						compared = n.Args[:1]
					}
				}
				if len(compared) == 0 || !fractional(compared[0]) {
					return true
				}
				if judges = append(judges, f.Name.Name); engineJudges[f.Name.Name] == "" {
					t.Errorf("%s: %s compares numbers with a fraction: rates, shares, prices and accuracies are weighed in core/sched and core/plan", fset.Position(n.Pos()), f.Name.Name)
				}
				return true
			})
		}
	}
	return judges
}

// calledName returns the called function's name with its package.
func calledName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}

// exportsOf opens the compiler's export data of the packages that pkg imports.
func exportsOf(t *testing.T, pkg string) func(path string) (io.ReadCloser, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", pkg)
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for line := range bytes.Lines(out) {
		path, file, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		exports[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
}
