package hinit_test

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// markdownLink matches a Markdown link. Its group is the target.
var markdownLink = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// TestLinks checks that every relative link of the documents leads to an existing file, and to an existing heading if
// it names one.
func TestLinks(t *testing.T) {
	pages := markdownFiles(t)
	links := 0
	for name, text := range pages {
		for _, m := range markdownLink.FindAllStringSubmatch(withoutCode(text), -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			file, heading, _ := strings.Cut(target, "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
				if _, err := os.Stat(to); err != nil {
					t.Errorf("%s links to %s, which does not exist", name, target)
					continue
				}
			}
			if heading == "" {
				continue
			}
			if page, known := pages[to]; !known || !slices.Contains(headingAnchors(page), heading) {
				t.Errorf("%s links to %s, where there is no such heading", name, target)
			}
		}
	}
	if links < 30 {
		t.Errorf("only %d links found", links)
	}
}

// TestEveryPageIsReachable checks that a reader can get from README.md to every page by links alone.
func TestEveryPageIsReachable(t *testing.T) {
	pages := markdownFiles(t)
	reached := make(map[string]bool)
	var visit func(string)
	visit = func(name string) {
		if reached[name] {
			return
		}
		reached[name] = true
		for _, m := range markdownLink.FindAllStringSubmatch(withoutCode(pages[name]), -1) {
			file, _, _ := strings.Cut(m[1], "#")
			if to := path.Join(path.Dir(name), file); pages[to] != "" {
				visit(to)
			}
		}
	}
	visit("README.md")
	for name := range pages {
		if !reached[name] {
			t.Errorf("no link leads from README.md to %s", name)
		}
	}
}

// TestTablesAreWhole checks that no blank line splits a Markdown table. The rows after a blank line are shown as plain
// text.
func TestTablesAreWhole(t *testing.T) {
	tables := 0
	for name, text := range markdownFiles(t) {
		lines := strings.Split(withoutCode(text), "\n")
		for i, line := range lines {
			if !strings.HasPrefix(line, "|") || i > 0 && strings.HasPrefix(lines[i-1], "|") {
				continue
			}
			tables++
			if i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "|--") {
				t.Errorf("%s has a row without a head: %s", name, line)
			}
		}
	}
	if tables < 30 {
		t.Errorf("only %d tables found", tables)
	}
}

// TestEnvironmentIsDocumented checks that docs/reference/environment.md names every environment variable of hinit that
// the code names.
func TestEnvironmentIsDocumented(t *testing.T) {
	page := markdownFiles(t)["docs/reference/environment.md"]
	ours := regexp.MustCompile(`^((HINIT|HERMES|GATEWAY|PLAYWRIGHT|AGENT_BROWSER)_[A-Z0-9_]+|P[UG]ID)$`)
	found := 0
	eachGoFile(t, func(file string, f *ast.File) {
		if strings.HasSuffix(file, "_test.go") || hasAnyPrefix(file, "examples/", "test/", "internal/testproc/", "internal/testkit/", "kubernetes/internal/cluster/") {
			return
		}
		eachStringLiteral(f, func(text string) {
			if !ours.MatchString(text) {
				return
			}
			found++
			if !strings.Contains(page, "`"+text+"`") {
				t.Errorf("%s uses the variable %s, which docs/reference/environment.md does not have", file, text)
			}
		})
	})
	if found < 10 {
		t.Errorf("only %d variables found", found)
	}
}

// TestControlAPIIsDocumented checks that control-api.md names every route of the API, and that control-api.md or
// json.md names every key of an answer.
func TestControlAPIIsDocumented(t *testing.T) {
	page, shapes := markdownFiles(t)["docs/reference/control-api.md"], markdownFiles(t)["docs/reference/json.md"]
	route := regexp.MustCompile(`^(GET|POST|PUT|DELETE) /`)
	key := regexp.MustCompile(`json:"([a-z_]+)`)
	kind := regexp.MustCompile(`^Kind[A-Z]`)
	routes, keys, kinds := 0, 0, 0
	eachGoFile(t, func(file string, f *ast.File) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		switch path.Dir(file) {
		case "internal/control":
			eachStringLiteral(f, func(text string) {
				if route.MatchString(text) {
					routes++
					if !strings.Contains(page, "`"+text+"`") {
						t.Errorf("docs/reference/control-api.md does not have the route %s", text)
					}
				}
			})
		case "client":
			eachStringLiteral(f, func(text string) {
				if m := key.FindStringSubmatch(text); m != nil {
					keys++
					if !regexp.MustCompile("[`\"]" + m[1] + "[`\"]").MatchString(page + shapes) {
						t.Errorf("docs/reference/control-api.md does not have the key %s", m[1])
					}
				}
			})
			eachStringConstant(f, func(name, value string) {
				// Clients set KindUnreachable themselves; no answer has it.
				if path.Base(file) == "errors.go" && kind.MatchString(name) && name != "KindUnreachable" {
					kinds++
					if !strings.Contains(page, "| `"+value+"` |") {
						t.Errorf("docs/reference/control-api.md does not have the kind of error %s", value)
					}
				}
			})
		}
	})
	if routes < 10 || keys < 30 || kinds < 8 {
		t.Errorf("only %d routes, %d keys and %d kinds of error found", routes, keys, kinds)
	}
}

// TestTestsThatDocumentsNameExist checks that each test that a page names as proof of a promise still exists.
func TestTestsThatDocumentsNameExist(t *testing.T) {
	named := regexp.MustCompile("`([a-z0-9/_-]+)\\.((?:Test|Fuzz)[A-Za-z0-9_]+)`")
	tests := make(map[string]bool)
	eachGoFile(t, func(file string, f *ast.File) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasSuffix(file, "_test.go") {
				tests[path.Dir(file)+"."+fn.Name.Name] = true
			}
		}
	})
	pages := markdownFiles(t)
	for name, least := range map[string]int{"SECURITY.md": 15, "docs/reference/promises.md": 15} {
		found := named.FindAllStringSubmatch(pages[name], -1)
		for _, m := range found {
			if !tests[m[1]+"."+m[2]] {
				t.Errorf("%s names the test %s of %s, which does not exist", name, m[2], m[1])
			}
		}
		if len(found) < least {
			t.Errorf("%s names only %d tests", name, len(found))
		}
	}
}

// markdownFiles returns the text of every Markdown file of the repository, by path.
func markdownFiles(t *testing.T) map[string]string {
	t.Helper()
	pages := make(map[string]string)
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "dist" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".md") {
			return nil
		}
		text, err := os.ReadFile(name)
		pages[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// withoutCode returns the text of a page without its code blocks.
func withoutCode(page string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
			continue
		}
		if !code && !strings.HasPrefix(line, "    ") {
			b.WriteString(line)
		}
	}
	return regexp.MustCompile("`[^`\n]*`").ReplaceAllStringFunc(b.String(), func(s string) string { return strings.NewReplacer("](", "").Replace(s) })
}

// headingAnchors returns the anchors of a page's headings, spelled as GitHub generates them.
func headingAnchors(page string) []string {
	var out []string
	for line := range strings.Lines(withoutCode(page)) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		text := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		out = append(out, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return r
			}
			return -1
		}, text))
	}
	return out
}

// eachStringLiteral calls each with the value of every string literal in the file.
func eachStringLiteral(f *ast.File, each func(text string)) {
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				each(text)
			}
		}
		return true
	})
}

// eachStringConstant calls each with the name and value of every string constant in the file.
func eachStringConstant(f *ast.File, each func(name, value string)) {
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) != len(spec.Values) {
			return true
		}
		for i, v := range spec.Values {
			if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					each(spec.Names[i].Name, text)
				}
			}
		}
		return true
	})
}

// TestTheDockerfileOfThePageIsThatOfTheTarget checks that the Dockerfile in replace-s6-overlay.md has the same steps as
// the target "hermes" of docker/Dockerfile. Readers copy it from the page.
func TestTheDockerfileOfThePageIsThatOfTheTarget(t *testing.T) {
	const page = "docs/how-to/replace-s6-overlay.md"
	_, rest, _ := strings.Cut(markdownFiles(t)[page], "```dockerfile\n")
	ours, _, found := strings.Cut(rest, "```")
	text, err := os.ReadFile("docker/Dockerfile")
	if err != nil || !found {
		t.Fatal(page, "has no Dockerfile", err)
	}
	_, target, _ := strings.Cut(string(text), "AS hermes\n")
	steps := func(text string) (out []string) {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "FROM ") {
				out = append(out, line)
			}
		}
		return out
	}
	if got, want := steps(ours), steps(target); !slices.Equal(got, want) {
		t.Errorf("%s has\n%s\nand docker/Dockerfile\n%s", page, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
