package hinit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"testing"
)

// TestThePageThatShowsTheWayIsRight checks that each function that docs/explanation/find-your-way.md names is in the
// file that the page names.
func TestThePageThatShowsTheWayIsRight(t *testing.T) {
	page, err := os.ReadFile("docs/explanation/find-your-way.md")
	if err != nil {
		t.Fatal(err)
	}
	hops := regexp.MustCompile("`([a-z0-9_/]+\\.go)` `(\\w+)`").FindAllStringSubmatch(string(page), -1)
	if len(hops) < 10 {
		t.Errorf("%d hops are too few", len(hops))
	}
	for _, hop := range hops {
		tree, err := parser.ParseFile(token.NewFileSet(), hop[1], nil, 0)
		if err != nil {
			t.Errorf("%v; mend the page", err)
			continue
		}
		found := false
		for _, d := range tree.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				found = found || d.Name.Name == hop[2]
			case *ast.GenDecl:
				for _, s := range d.Specs {
					spec, ok := s.(*ast.TypeSpec)
					found = found || ok && spec.Name.Name == hop[2]
				}
			}
		}
		if !found {
			t.Errorf("there is no %s in %s: mend the page", hop[2], hop[1])
		}
	}
}
