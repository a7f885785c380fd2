package lint

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// faces are the packages that programs of other modules use, each with the names of inner rooms that it re-exports:
// the vocabulary, which DESIGN makes frontends show, and values that a deployment passes from one part to another,
// into which a program need not look.
var faces = map[string][]string{
	".":                     {"ElectionStore"},
	"frontend":              {"Datatype", "TensorInfo", "Picture", "Reason", "ModelInfo", "Floor", "SequenceInfo", "Control", "ControlKind", "State"},
	"backend":               {"Node", "DataPlane", "LinkStats", "Hello", "Descriptor", "Profile"},
	"frontend/app":          {"Graph", "Profiles", "Capacity", "Trial"},
	"frontend/frontendtest": nil,
}

// behindFaces reports whether a package of this module is one that those programs need not know.
func behindFaces(path string) bool {
	pkg, inModule := strings.CutPrefix(path, module+"/")
	return inModule && (within(pkg, "core") || within(pkg, "rdma"))
}

// TestFacesShowNoRoomBehindThem: the signatures and fields that a program uses name only types of the libraries
// themselves and of Go. If a face re-exports a struct of another room, the types of that struct's fields have names
// in the face, too.
func TestFacesShowNoRoomBehindThem(t *testing.T) {
	all := sources(t)
	for pkg, shown := range faces {
		var given []string
		for _, s := range all {
			if s.pkg != pkg || s.test {
				continue
			}
			for _, d := range s.file.Decls {
				for name, shape := range exportedShape(d) {
					for _, behind := range namesBehind(s, shape) {
						t.Errorf("%s: %s shows %s to programs that use the library", fset.Position(shape.Pos()), name, behind)
					}
				}
				for name, of := range aliasesOf(d) {
					if behind := namesBehind(s, of); len(behind) > 0 {
						given = append(given, name)
						checkFieldsAreNamed(t, all, s, of, pkg)
					}
				}
			}
		}

		// The list is exact: remove a name that is no longer shown.
		slices.Sort(given)
		if want := slices.Sorted(slices.Values(shown)); !slices.Equal(given, want) {
			t.Errorf("package %s gives names of its own to %v, faces lists %v", pkg, given, want)
		}
	}
}

// namesBehind returns the types of inner rooms that a declaration names.
func namesBehind(s source, shape ast.Node) (names []string) {
	ast.Inspect(shape, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && behindFaces(importOf(s, x.Name)) {
			names = append(names, x.Name+"."+sel.Sel.Name)
		}
		return true
	})
	return names
}

// importOf returns the import path of a package name in a file; empty: none.
func importOf(s source, name string) string {
	for _, i := range s.file.Imports {
		path := strings.Trim(i.Path.Value, "\"")
		if i.Name != nil && i.Name.Name == name || i.Name == nil && path[strings.LastIndexByte(path, '/')+1:] == name {
			return path
		}
	}
	return ""
}

// checkFieldsAreNamed checks the fields of a re-exported struct of the vocabulary against the names of the face.
// Structs of other rooms are opaque: a deployment makes and reads them.
func checkFieldsAreNamed(t *testing.T, all []source, s source, of ast.Expr, face string) {
	sel, ok := of.(*ast.SelectorExpr)
	if !ok {
		return
	}
	pkg := strings.TrimPrefix(importOf(s, sel.X.(*ast.Ident).Name), module+"/")
	if pkg != "core/model" {
		return
	}

	named := map[string]bool{} // names in the face
	for _, s := range all {
		for _, d := range s.file.Decls {
			for _, of := range aliasesOf(d) {
				if sel, ok := of.(*ast.SelectorExpr); ok && s.pkg == face {
					named[sel.Sel.Name] = true
				}
			}
		}
	}

	for _, s := range all {
		for _, d := range s.file.Decls {
			shape := exportedShape(d)[sel.Sel.Name]
			if s.pkg != pkg || shape == nil {
				continue
			}
			ast.Inspect(shape, func(n ast.Node) bool {
				if f, ok := n.(*ast.Field); ok {
					if x := elementOf(f.Type); x != nil && x.IsExported() && !named[x.Name] {
						t.Errorf("%s: %s shows %s.%s, and has no name for its field's type %s", face, sel.Sel.Name, pkg, sel.Sel.Name, x.Name)
					}
				}
				return true
			})
		}
	}
}

// elementOf returns the name of the element type of a field, a slice or a pointer; nil if it has none in its own
// package.
func elementOf(x ast.Expr) *ast.Ident {
	switch x := x.(type) {
	case *ast.Ident:
		return x
	case *ast.ArrayType:
		return elementOf(x.Elt)
	case *ast.StarExpr:
		return elementOf(x.X)
	}
	return nil
}

// exportedShape returns what other packages see of a declaration: signatures, types without their unexported fields,
// and the types of variables and constants.
func exportedShape(d ast.Decl) map[string]ast.Node {
	shapes := map[string]ast.Node{}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv)) {
			shapes[d.Name.Name] = d.Type
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				if spec.Names[0].IsExported() && spec.Type != nil {
					shapes[spec.Names[0].Name] = spec.Type
				}
			case *ast.TypeSpec:
				if spec.Name.IsExported() && !spec.Assign.IsValid() { // an alias is a name of the library
					shapes[spec.Name.Name] = exportedFields(spec.Type)
				}
			}
		}
	}
	return shapes
}

// aliasesOf returns the exported aliases in a declaration.
func aliasesOf(d ast.Decl) map[string]ast.Expr {
	all := map[string]ast.Expr{}
	g, ok := d.(*ast.GenDecl)
	if !ok || g.Tok != token.TYPE {
		return all
	}
	for _, spec := range g.Specs {
		if ts := spec.(*ast.TypeSpec); ts.Name.IsExported() && ts.Assign.IsValid() {
			all[ts.Name.Name] = ts.Type
		}
	}
	return all
}

// exportedFields removes a struct's fields that other packages cannot name; any other type is returned as a whole.
func exportedFields(x ast.Expr) ast.Node {
	st, ok := x.(*ast.StructType)
	if !ok {
		return x
	}
	seen := new(ast.FieldList)
	for _, f := range st.Fields.List {
		if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
			seen.List = append(seen.List, f)
		}
	}
	return seen
}

func exportedReceiver(r *ast.FieldList) bool {
	name, ok := r.List[0].Type.(*ast.Ident)
	if p, isPointer := r.List[0].Type.(*ast.StarExpr); isPointer {
		name, ok = p.X.(*ast.Ident)
	}
	return ok && name.IsExported()
}
