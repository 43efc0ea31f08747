package hinit_test

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
	"testing"
)

// docLink matches a link to a declaration: the name in brackets, after a type or package and a dot if necessary. A link to a web page
// has a "(" or ":" after it.
var docLink = regexp.MustCompile(`\[\*?([A-Za-z]\w*(?:\.[A-Za-z]\w*){0,2})\](?:[^(\[:\w]|$)`)

// TestLinksInCommentsLeadToDeclarations checks that each link in a comment names a declaration. A rename would otherwise leave the
// old name in comments elsewhere.
func TestLinksInCommentsLeadToDeclarations(t *testing.T) {
	byDir, byPackage, other := make(map[string]map[string]bool), make(map[string]map[string]bool), make(map[string]bool)
	eachGoFile(t, func(file string, f *ast.File) {
		name, dir := strings.TrimSuffix(f.Name.Name, "_test"), path.Dir(file)
		if byDir[dir] == nil {
			byDir[dir] = make(map[string]bool)
		}
		if byPackage[name] == nil {
			byPackage[name] = make(map[string]bool)
		}
		for _, decl := range declaredNames(f) {
			byDir[dir][decl], byPackage[name][decl] = true, true
		}
		for _, imported := range f.Imports {
			if name := strings.Trim(imported.Path.Value, `"`); !strings.HasPrefix(name, "hinit/") {
				other[path.Base(name)] = true
			}
		}
	})
	links := 0
	eachGoFile(t, func(file string, f *ast.File) {
		here := byDir[path.Dir(file)]
		for _, group := range f.Comments {
			for _, link := range docLink.FindAllStringSubmatch(group.Text(), -1) {
				first, rest, hasDot := strings.Cut(link[1], ".")
				kind, _, _ := strings.Cut(rest, ".")
				switch {
				case !hasDot && (!ast.IsExported(first) || strings.ToUpper(first) == first), here[link[1]], here[first+".*"], byPackage[first] == nil && other[first],
					byPackage[first][rest], byPackage[first][kind+".*"]:
					links++
				default:
					t.Errorf("%s: the comment %.40q links to %s, which is not declared", file, group.Text(), link[0])
				}
			}
		}
	})
	if links < 500 {
		t.Errorf("only %d links found", links)
	}
}

// declaredNames returns the names that a file declares. The members of a type have the form Type.Member. A type with embedded
// fields also gives the name Type.*, because other files declare some of its members.
func declaredNames(f *ast.File) (names []string) {
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiverName(d.Recv.List[0].Type) + "." + name
			}
			names = append(names, name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names = append(names, name.Name)
					}
				case *ast.TypeSpec:
					names = append(append(names, s.Name.Name), membersOf(s)...)
				}
			}
		}
	}
	return names
}

// receiverName returns the name of a receiver's type, without "*" and type parameters.
func receiverName(of ast.Expr) string {
	switch e := of.(type) {
	case *ast.StarExpr:
		return receiverName(e.X)
	case *ast.IndexExpr:
		return receiverName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// membersOf returns the fields of a struct and the methods of an interface, as in declaredNames.
func membersOf(s *ast.TypeSpec) (names []string) {
	var list *ast.FieldList
	switch kind := s.Type.(type) {
	case *ast.StructType:
		list = kind.Fields
	case *ast.InterfaceType:
		list = kind.Methods
	default:
		return nil
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			names = append(names, s.Name.Name+"."+name.Name)
		}
		if len(field.Names) == 0 {
			names = append(names, s.Name.Name+".*")
		}
	}
	return names
}
