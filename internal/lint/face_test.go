package lint

import (
	"go/ast"
	"slices"
	"testing"
)

// TestFrontendShowsNoRoomBehindIt: what a program writes that uses the library has names of the library itself, of the
// vocabulary and of Go. The exceptions are for the other rooms of this module, which open links in their own process and
// set up data planes; a program leaves those fields alone.
func TestFrontendShowsNoRoomBehindIt(t *testing.T) {
	hidden := []string{"control", "engine", "wire", "sched", "repo", "plan", "rdma"}
	exceptions := []string{"Opener", "Options", "Stats"}
	for _, s := range sources(t) {
		if s.pkg != "frontend" || s.test {
			continue
		}
		for _, d := range s.file.Decls {
			for name, shown := range exportedShape(d) {
				if slices.Contains(exceptions, name) {
					continue
				}
				ast.Inspect(shown, func(n ast.Node) bool {
					sel, ok := n.(*ast.SelectorExpr)
					if !ok {
						return true
					}
					if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(hidden, x.Name) {
						t.Errorf("%s: %s shows %s.%s to programs that use the library", fset.Position(n.Pos()), name, x.Name, sel.Sel.Name)
					}
					return true
				})
			}
		}
	}
}

// exportedShape returns what other packages see of a declaration: signatures, and types without their unexported fields.
func exportedShape(d ast.Decl) map[string]ast.Node {
	shapes := map[string]ast.Node{}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv)) {
			shapes[d.Name.Name] = d.Type
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			ts, ok := spec.(*ast.TypeSpec)
			if !ok || !ts.Name.IsExported() || ts.Assign.IsValid() { // an alias is a name of the library
				continue
			}
			st, ok := ts.Type.(*ast.StructType)
			if !ok {
				shapes[ts.Name.Name] = ts.Type
				continue
			}
			seen := new(ast.FieldList)
			for _, f := range st.Fields.List {
				if len(f.Names) == 0 || f.Names[0].IsExported() {
					seen.List = append(seen.List, f)
				}
			}
			shapes[ts.Name.Name] = seen
		}
	}
	return shapes
}

func exportedReceiver(r *ast.FieldList) bool {
	name, ok := r.List[0].Type.(*ast.Ident)
	if p, isPointer := r.List[0].Type.(*ast.StarExpr); isPointer {
		name, ok = p.X.(*ast.Ident)
	}
	return ok && name.IsExported()
}
