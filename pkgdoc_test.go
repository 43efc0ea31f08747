package hinit_test

import (
	"go/ast"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestPackageComments checks that every package has exactly one package comment, that it begins as godoc expects, and
// that the files it names exist. In hinit's own packages the comment must also name the goroutines that the package
// owns.
func TestPackageComments(t *testing.T) {
	type pkg struct {
		name string
		docs []string // Files with a package comment.
		text string
	}
	pkgs := make(map[string]*pkg)
	eachGoFile(t, func(file string, f *ast.File) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		dir := path.Dir(file)
		if pkgs[dir] == nil {
			pkgs[dir] = &pkg{name: f.Name.Name}
		}
		if f.Doc != nil {
			p := pkgs[dir]
			p.docs, p.text = append(p.docs, file), f.Doc.Text()
		}
	})
	for dir, p := range pkgs {
		switch len(p.docs) {
		case 0:
			t.Errorf("package %s in %s has no package comment", p.name, dir)
			continue
		case 1:
		default:
			t.Errorf("package %s has %d package comments, in %s: godoc shows them one after the other", p.name, len(p.docs), strings.Join(p.docs, ", "))
			continue
		}
		begin := "Package " + p.name + " "
		if p.name == "main" {
			begin = "Command " + path.Base(dir) + " "
		}
		if !strings.HasPrefix(p.text, begin) {
			t.Errorf("%s: the package comment begins with %q, not with %q", p.docs[0], firstThreeWords(p.text), begin)
		}
		if !strings.HasPrefix(dir, "examples/") && !strings.Contains(p.text, "goroutine") {
			t.Errorf("%s: the package comment does not say which goroutines the package owns", p.docs[0])
		}
		for _, name := range goFilePattern.FindAllString(p.text, -1) {
			_, here := os.Stat(path.Join(dir, name))
			if _, below := os.Stat(name); here != nil && below != nil {
				t.Errorf("%s: the package comment names the file %s, which does not exist", p.docs[0], name)
			}
		}
	}
}

// goFilePattern matches the name of a Go file, with or without directories.
var goFilePattern = regexp.MustCompile(`\b[a-z0-9_/]+\.go\b`)

func firstThreeWords(text string) string {
	words := strings.Fields(text)
	return strings.Join(words[:min(3, len(words))], " ")
}
