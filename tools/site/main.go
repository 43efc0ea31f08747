// Command site builds the pages of docs/ into a directory of HTML that needs no server and no script. The pages have a light and
// a dark style, and a navigation by kind of page. A link without a target is an error. Run it with "make site". It owns no
// goroutine.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

func main() {
	root := flag.String("root", ".", "the repository")
	out := flag.String("out", "dist/site", "where the site goes")
	flag.Parse()
	if err := build(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// page is one page of the site.
type page struct {
	source, target string // Paths, for instance README.md and index.html, or docs/how-to/x.md and docs/how-to/x.html.
	title          string
	ids            map[string]bool // Anchors of the page, to which links can lead.
	doc            ast.Node
	text           []byte
}

type group struct {
	Title string
	Pages []link
}

type link struct {
	Title, Href string
	Here        bool
}

// kinds are the directories of docs/, in the order of the navigation.
var kinds = []struct{ dir, title string }{
	{"", "Start"}, {"docs/tutorial", "Tutorials"}, {"docs/how-to", "How-to"}, {"docs/reference", "Reference"}, {"docs/explanation", "Explanation"}, {"docs/adr", "Decisions"},
}

// front lists the pages of the site that are not in docs/.
var front = []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md"}

func build(root, out string) error {
	pages, files, err := read(root)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	broken := check(root, pages, files)
	for _, name := range slices.Sorted(keys(pages)) {
		if err := write(out, pages[name], pages); err != nil {
			return err
		}
	}
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		if err := put(out, name, content); err != nil {
			return err
		}
	}
	if len(broken) > 0 {
		return errors.New("links that lead nowhere:\n  " + strings.Join(broken, "\n  "))
	}
	fmt.Printf("%d pages and %d files are in %s\n", len(pages), len(files), out)
	return nil
}

func keys(pages map[string]*page) func(func(string) bool) {
	return func(yield func(string) bool) {
		for name := range pages {
			if !yield(name) {
				return
			}
		}
	}
}

// read returns the pages, and the files that are copied as they are.
func read(root string) (pages map[string]*page, files []string, err error) {
	pages = make(map[string]*page)
	names := slices.Clone(front)
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if strings.HasSuffix(rel, ".md") {
			names = append(names, rel)
		} else {
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, nil, err
		}
		p := &page{source: name, target: target(name), text: content, ids: make(map[string]bool)}
		p.doc = markdown.Parser().Parse(text.NewReader(content), parser.WithContext(parser.NewContext(parser.WithIDs(&ids{seen: p.ids}))))
		p.title = cmp.Or(heading(p), strings.TrimSuffix(path.Base(name), ".md"))
		pages[name] = p
	}
	return pages, files, nil
}

func target(name string) string {
	if name == "README.md" {
		return "index.html"
	}
	return strings.TrimSuffix(name, ".md") + ".html"
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()), goldmark.WithRendererOptions(html.WithUnsafe()))

// ids gives headings the same anchors as GitHub, because the links of the pages are written for GitHub.
type ids struct{ seen map[string]bool }

var notInID = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)

// Generate implements parser.IDs.
func (i *ids) Generate(value []byte, _ ast.NodeKind) []byte {
	base := strings.ReplaceAll(notInID.ReplaceAllString(strings.ToLower(strings.TrimSpace(plain.Replace(string(value)))), ""), " ", "-")
	id := base
	for n := 1; i.seen[id]; n++ {
		id = fmt.Sprintf("%s-%d", base, n)
	}
	i.seen[id] = true
	return []byte(id)
}

// Put implements parser.IDs.
func (i *ids) Put(value []byte) { i.seen[string(value)] = true }

var plain = strings.NewReplacer("`", "", "*", "")

// heading returns the text of the first heading of the first level.
func heading(p *page) (title string) {
	for n := p.doc.FirstChild(); n != nil; n = n.NextSibling() {
		if h, is := n.(*ast.Heading); is && h.Level == 1 {
			return plain.Replace(string(h.Lines().Value(p.text)))
		}
	}
	return ""
}

// check converts links between pages to links of the site. It returns the links that lead nowhere.
func check(root string, pages map[string]*page, files []string) (broken []string) {
	for _, name := range slices.Sorted(keys(pages)) {
		p := pages[name]
		_ = ast.Walk(p.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
			if !entering {
				return ast.WalkContinue, nil
			}
			var at *[]byte
			switch n := n.(type) {
			case *ast.Link:
				at = &n.Destination
			case *ast.Image:
				at = &n.Destination
			default:
				return ast.WalkContinue, nil
			}
			to, ok := resolve(root, p, string(*at), pages, files)
			if !ok {
				broken = append(broken, p.source+": "+string(*at))
			}
			*at = []byte(to)
			return ast.WalkContinue, nil
		})
	}
	return broken
}

// resolve returns the target of a page's link on the site.
func resolve(root string, p *page, href string, pages map[string]*page, files []string) (to string, ok bool) {
	u, err := url.Parse(href)
	if err != nil {
		return href, false
	}
	if u.Scheme != "" || u.Host != "" {
		return href, true
	}
	name := p.source
	if u.Path != "" {
		name = path.Join(path.Dir(p.source), u.Path)
	}
	other, is := pages[name]
	if !is {
		if slices.Contains(files, name) {
			return href, true
		}
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			return href, false
		}
		return "#", true // The link leads to a source file, which is not on the site.
	}
	if u.Fragment != "" && !other.ids[u.Fragment] {
		return href, false
	}
	to = relative(p.target, other.target)
	if other == p {
		to = ""
	}
	if u.Fragment != "" {
		to += "#" + u.Fragment
	}
	return cmp.Or(to, "#"), true
}

// relative returns the relative URL from one page to another.
func relative(from, to string) string {
	return strings.Repeat("../", strings.Count(from, "/")) + to
}

func write(out string, p *page, pages map[string]*page) error {
	var body bytes.Buffer
	if err := markdown.Renderer().Render(&body, p.text, p.doc); err != nil {
		return err
	}
	var groups []group
	for _, k := range kinds {
		g := group{Title: k.title}
		for _, name := range slices.Sorted(keys(pages)) {
			dir := path.Dir(name)
			if dir == cmp.Or(k.dir, ".") {
				g.Pages = append(g.Pages, link{pages[name].title, relative(p.target, pages[name].target), name == p.source})
			}
		}
		if k.dir == "" { // The front pages are listed in the order of front, not by name.
			slices.SortFunc(g.Pages, func(a, b link) int { return strings.Compare(order(a.Href), order(b.Href)) })
		}
		groups = append(groups, g)
	}
	var whole bytes.Buffer
	err := layout.Execute(&whole, map[string]any{"Title": p.title, "Groups": groups, "Body": template.HTML(body.String()), "Home": relative(p.target, "index.html")}) //nolint:gosec // the HTML comes from the pages of this repository
	if err != nil {
		return err
	}
	return put(out, p.target, whole.Bytes())
}

// order returns a sort key that puts the start page first.
func order(href string) string {
	if strings.HasSuffix(href, "index.html") {
		return ""
	}
	return href
}

func put(out, name string, content []byte) error {
	to := filepath.Join(out, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

var layout = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{.Title}} · hinit</title>
<style>
:root { --text: #1c2024; --soft: #5b6570; --back: #fff; --panel: #f4f6f8; --line: #d9dee3; --link: #0b57c2 }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --soft: #9aa5b0; --back: #14171a; --panel: #1e2226; --line: #343a41; --link: #7db4ff } }
* { box-sizing: border-box }
body { margin: 0; font: 16px/1.6 system-ui, sans-serif; color: var(--text); background: var(--back); display: grid; grid-template-columns: 17rem minmax(0, 1fr) }
nav { background: var(--panel); border-right: 1px solid var(--line); padding: 1rem; height: 100vh; overflow: auto; position: sticky; top: 0; font-size: 14px }
nav summary { font-weight: 600; cursor: pointer; margin-top: .5rem } nav ul { list-style: none; margin: .2rem 0; padding-left: .6rem }
nav a { color: var(--soft); text-decoration: none } nav a:hover, nav a[aria-current] { color: var(--text); font-weight: 600 }
main { padding: 1.5rem 2.5rem 4rem; max-width: 62rem; min-width: 0 } a { color: var(--link) } img { max-width: 100% }
pre, code { font: 13.5px/1.5 ui-monospace, monospace } code { background: var(--panel); padding: .1em .3em; border-radius: 3px }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; overflow: auto } pre code { padding: 0 }
table { border-collapse: collapse; display: block; overflow: auto } th, td { border: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top }
@media (max-width: 50rem) { body { display: block } nav { position: static; height: auto; border: 0 } main { padding: 1rem } }
</style>
</head>
<body>
<nav aria-label="Pages"><a href="{{.Home}}"><strong>hinit</strong></a>
{{range .Groups}}<details{{range .Pages}}{{if .Here}} open{{end}}{{end}}><summary>{{.Title}}</summary><ul>
{{range .Pages}}<li><a href="{{.Href}}"{{if .Here}} aria-current="page"{{end}}>{{.Title}}</a></li>
{{end}}</ul></details>
{{end}}</nav>
<main>
{{.Body}}
</main>
</body>
</html>
`))
