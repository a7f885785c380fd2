package lint

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// room is a folder with the packages in it, and the rooms that their code may import. Tests may import more.
type room struct {
	name string
	may  []string
}

// root is the room of the module's root package, which lies beside all folders.
const root = "downbeat"

// rooms lists every room. A room imports only rooms below it, so the list cannot contain a cycle.
var rooms = []room{
	{"examples", []string{root, "frontend"}},
	{"cmd", []string{"bench", root, "bench/load", "frontend", "deploy", "models", "backend/learn", "backend", "core/sim", "core/arrivals", "core/lead", "core/control", "core/engine", "core/repo", "core/app", "core/plan", "core/wire", "core/profile", "core/model", "cuda", "rdma"}},
	{"bench", []string{root, "bench/load", "bench/chart", "frontend", "models", "backend/learn", "backend", "core/swarm", "core/sim", "core/arrivals", "core/control", "core/engine", "core/repo", "core/app", "core/plan", "core/limits", "core/sched", "core/wire", "core/profile", "core/model", "cuda", "rdma"}},
	{"bench/load", []string{"bench/chart", "frontend", "models", "core/arrivals"}},
	{"bench/chart", nil},
	{root, []string{"frontend", "deploy", "backend/learn", "backend", "core/observe", "core/lead", "core/control", "core/engine", "core/repo", "core/app", "core/wire", "core/profile", "rdma"}},
	{"frontend/frontendtest", []string{"frontend", "backend", "core/control", "core/engine", "core/repo", "rdma"}},
	{"frontend", []string{"core/observe", "core/guard", "core/control", "core/app", "core/limits", "core/wire", "core/model", "rdma"}},
	{"deploy", []string{"backend", "core/observe", "cuda", "rdma"}},
	{"models", []string{"backend", "core/repo"}},
	{"backend/learn", []string{"backend", "core/repo", "core/plan", "core/wire"}},
	{"backend", []string{"core/control", "core/limits", "core/repo", "core/wire", "core/profile", "core/model", "cuda", "rdma", "csrc"}},
	{"core/swarm", []string{"core/lead", "core/control", "core/engine", "core/limits", "core/invariants", "core/sched", "core/wire", "core/model"}},
	{"core/sim", []string{"core/arrivals", "core/engine", "core/app", "core/plan", "core/sched", "core/profile", "core/model"}},
	{"core/arrivals", nil},
	{"core/lead", []string{"core/control"}},
	{"core/observe", []string{"core/engine", "core/guard", "core/model"}},
	{"core/control", []string{"core/engine", "core/wire", "core/model"}},
	{"core/engine", []string{"core/plan", "core/limits", "core/sched", "core/wire", "core/profile", "core/model"}},
	{"core/repo", []string{"core/app", "core/profile", "core/model"}},
	{"core/app", []string{"core/plan", "core/profile", "core/model"}},
	{"core/plan", []string{"core/profile", "core/model"}},
	{"core/sched", []string{"core/limits", "core/profile", "core/model"}},
	{"core/wire", []string{"core/model"}},
	{"core/profile", nil},
	{"core/model", nil},
	{"core/limits", nil},
	{"core/guard", nil},
	{"core/invariants", nil},
	{"core", nil},
	{"cuda", []string{"csrc"}},
	{"rdma", []string{"csrc"}},
	{"csrc", nil},
	{"internal", nil},
}

// roomOf returns the room that a package lies in: the innermost, if one room lies within another.
func roomOf(pkg string) (room, bool) {
	if pkg == "." {
		pkg = root
	}
	var found room
	for _, r := range rooms {
		if within(pkg, r.name) && len(r.name) > len(found.name) {
			found = r
		}
	}
	return found, found.name != ""
}

// TestImportDirection checks every import of this module against the list of rooms.
func TestImportDirection(t *testing.T) {
	for _, s := range sources(t) {
		from, listed := roomOf(s.pkg)
		if !listed {
			t.Errorf("%s: package %s lies in no room: list it in rooms, with what it may import", s.path, s.pkg)
			continue
		}

		for _, path := range imports(s) {
			target, inModule := strings.CutPrefix(path, module)
			if !inModule {
				continue
			}
			to, _ := roomOf(cmp.Or(strings.TrimPrefix(target, "/"), "."))
			if from.name == to.name || s.test || slices.Contains(from.may, to.name) {
				continue
			}
			t.Errorf("%s: %s may not import %s (allowed: %v)", s.path, from.name, target, from.may)
		}
	}
}

// TestWhoDoesNotSchedule: backends and frontends use the vocabulary of core/model. Not even their tests import the
// deciding packages, so that none can depend on them.
func TestWhoDoesNotSchedule(t *testing.T) {
	for _, s := range sources(t) {
		for _, room := range []string{"backend", "frontend"} {
			if within(s.pkg, room) && slices.Contains(imports(s), module+"/core/sched") {
				t.Errorf("%s imports core/sched: a %s does not schedule", s.path, room)
			}
		}
	}
}

// TestRoomsStandInOrder: imported rooms are below their importers.
func TestRoomsStandInOrder(t *testing.T) {
	for i, r := range rooms {
		for _, may := range r.may {
			if k := slices.IndexFunc(rooms, func(o room) bool { return o.name == may }); k <= i {
				t.Errorf("%s may import %s, which does not stand below it (%d, %d)", r.name, may, i, k)
			}
		}
	}
}

// TestArchitectureShowsTheRooms: the picture in docs/ARCHITECTURE.md is drawn from rooms, and the table below it has
// a row for each.
func TestArchitectureShowsTheRooms(t *testing.T) {
	text, err := os.ReadFile("../../docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}

	if picture := drawRooms(); !strings.Contains(string(text), picture) {
		t.Errorf("docs/ARCHITECTURE.md: the picture of who imports whom must be\n%s", picture)
	}
	for _, r := range rooms {
		if r.name != "core" && r.name != "internal" && r.name != "examples" && !strings.Contains(string(text), "`"+r.name+"`") {
			t.Errorf("docs/ARCHITECTURE.md says nothing of `%s`", r.name)
		}
	}
}

// drawRooms draws a line for each room with an arrow to the rooms that it may import.
func drawRooms() string {
	var b strings.Builder
	b.WriteString("```\n")
	for _, r := range rooms {
		switch {
		case r.name == "core" || r.name == "internal" || r.name == "examples": // a page of documentation; tests
		case len(r.may) == 0:
			fmt.Fprintf(&b, "%s\n", r.name)
		default:
			drawRoom(&b, r)
		}
	}
	b.WriteString("```\n")
	return b.String()
}

// drawRoom draws one room, in lines that fit a page.
func drawRoom(b *strings.Builder, r room) {
	const wide = 90
	line := fmt.Sprintf("%-13s──▶", r.name)
	for _, may := range r.may {
		if len([]rune(line))+1+len(may) > wide {
			b.WriteString(line + "\n")
			line = strings.Repeat(" ", 16)
		}
		line += " " + may
	}
	b.WriteString(line + "\n")
}
