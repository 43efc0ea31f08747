package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// packageEntry is a package of hinit. floor is the number of its dependency layer. A package imports only packages of lower
// layers.
type packageEntry struct {
	path     string // path of the package in the module
	layer    int
	synopsis string // first sentence of the package comment
}

// diagramRows lists the rows of the diagram. Each row shows one or more of the dependency layers in deps_test.go.
var diagramRows = []struct {
	name       string
	upper, low int
}{
	{"programs", 6, 6},
	{"command line and container", 5, 5},
	{"what answers and what keeps", 4, 4},
	{"the container's boot and the profiles", 3, 3},
	{"supervision", 2, 2},
	{"processes, logs, the shim", 1, 1},
	{"ground floor", 0, 0},
	{"cellar: what even the ground floor calls", -1, -9},
}

// listPackages returns all packages, with their layers from deps_test.go and the first sentences of their package comments.
func listPackages(root string) ([]packageEntry, error) {
	floors, err := parseLayers(filepath.Join(root, "deps_test.go"))
	if err != nil {
		return nil, err
	}
	var all []packageEntry
	for pkg, floor := range floors {
		path := strings.TrimPrefix(pkg, "hinit/")
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			continue
		}
		does, err := synopsis(filepath.Join(root, path))
		if err != nil {
			return nil, err
		}
		all = append(all, packageEntry{path, floor, does})
	}
	slices.SortFunc(all, func(a, b packageEntry) int {
		if a.layer != b.layer {
			return b.layer - a.layer
		}
		return strings.Compare(a.path, b.path)
	})
	return all, nil
}

// parseLayers reads the map "packageLayers" from a Go file. The map contains the layer of each package.
func parseLayers(file string) (map[string]int, error) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read the floors: %w", err)
	}
	floors := make(map[string]int)
	ast.Inspect(tree, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "packageLayers" {
			return true
		}
		for _, element := range spec.Values[0].(*ast.CompositeLit).Elts {
			entry := element.(*ast.KeyValueExpr)
			name, _ := strconv.Unquote(entry.Key.(*ast.BasicLit).Value)
			switch value := entry.Value.(type) {
			case *ast.BasicLit:
				floors[name], _ = strconv.Atoi(value.Value)
			case *ast.UnaryExpr:
				n, _ := strconv.Atoi(value.X.(*ast.BasicLit).Value)
				floors[name] = -n
			}
		}
		return false
	})
	if len(floors) == 0 {
		return nil, fmt.Errorf("cannot read the floors: there is no table in %s", file)
	}
	return floors, nil
}

// synopsis returns the first sentence of the package comment in a directory.
func synopsis(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", fmt.Errorf("cannot read package %s: %w", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("cannot read package %s: %w", dir, err)
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return "", fmt.Errorf("cannot read package %s: %w", dir, err)
		}
		if tree.Doc != nil {
			return new(doc.Package).Synopsis(tree.Doc.Text()), nil
		}
	}
	return "", fmt.Errorf("package %s has no package comment, or is not there: mend it, or its line in deps_test.go", dir)
}

const (
	packageBoxWidth, packageBoxHeight = 148, 34
	boxesPerRow                       = 6
	pictureWidth                      = 20 + boxesPerRow*(packageBoxWidth+10)
)

// packageDiagram returns an SVG of the packages, with the highest layer on top.
func packageDiagram(all []packageEntry) string {
	var body strings.Builder
	y := 10
	for _, s := range diagramRows {
		var here []packageEntry
		for _, r := range all {
			if r.layer <= s.upper && r.layer >= s.low {
				here = append(here, r)
			}
		}
		rows := (len(here) + boxesPerRow - 1) / boxesPerRow
		height := 24 + rows*(packageBoxHeight+8) + 4
		fmt.Fprintf(&body, `<rect x="10" y="%d" width="%d" height="%d" rx="6" fill="#f6f8fa" stroke="#c5d0da"/>`+"\n", y, pictureWidth-20, height)
		fmt.Fprintf(&body, `<text x="20" y="%d" fill="#57606a">%s</text>`+"\n", y+17, html.EscapeString(s.name))
		for i, r := range here {
			x, top := 20+i%boxesPerRow*(packageBoxWidth+8), y+24+i/boxesPerRow*(packageBoxHeight+8)
			fmt.Fprintf(&body, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="#eef3f8" stroke="#44617b"><title>%s</title></rect>`+"\n",
				x, top, packageBoxWidth, packageBoxHeight, html.EscapeString(r.synopsis))
			fmt.Fprintf(&body, `<text x="%d" y="%d" text-anchor="middle" fill="#222222">%s</text>`+"\n", x+packageBoxWidth/2, top+22, r.path)
		}
		y += height + 8
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">
<!-- Generated from deps_test.go by internal/gendocs. Do not edit. -->
<rect width="100%%" height="100%%" fill="#ffffff"/>
`, pictureWidth, y) + body.String() + "</svg>\n"
}

// packagesPage returns a page that lists the packages, with the questions that each package answers. It returns an error if a
// package is not in the list, or if a file in the list does not exist.
func packagesPage(root string, all []packageEntry) (string, error) {
	var b strings.Builder
	b.WriteString(packagesText)
	for i, f := range firstFiles {
		if _, err := os.Stat(filepath.Join(root, f)); err != nil {
			return "", fmt.Errorf("cannot name the files to start with: %w", err)
		}
		fmt.Fprintf(&b, "%d. `%s`\n", i+1, f)
	}
	b.WriteString(flowText)
	left := make(map[string]bool)
	for _, r := range all {
		left[r.path] = true
	}
	for _, p := range pageSections {
		fmt.Fprintf(&b, "\n## %s\n\n", p.title)
		var names []string
		for _, r := range p.rooms {
			for _, file := range append([]string{r.file}, goFilePattern.FindAllString(r.questions, -1)...) {
				if _, err := os.Stat(filepath.Join(root, r.path, file)); err != nil {
					return "", fmt.Errorf("cannot list the room %s: %w; mend its line in internal/gendocs/rooms_flow.go", r.path, err)
				}
			}
			delete(left, r.path)
			if r.questions == "" {
				names = append(names, "`"+r.path+"`")
				continue
			}
			file := ""
			if r.file != "" {
				file = ", `" + r.file + "`"
			}
			fmt.Fprintf(&b, "- `%s`%s: %s\n", r.path, file, r.questions)
		}
		if len(names) > 0 {
			slices.Sort(names)
			fmt.Fprintf(&b, "The programs in `cmd/` read their flags and call the room of the same name. %s.\n", strings.Join(names, ", "))
		}
	}
	for path := range left {
		return "", fmt.Errorf("%s is in no part of the page of rooms: add it to internal/gendocs/rooms_flow.go", path)
	}
	return b.String(), nil
}

// goFilePattern matches the Go files that a line of the page names.
var goFilePattern = regexp.MustCompile(`\w+\.go\b`)

// packagePages returns the diagram and the list of the packages, by file name.
func packagePages(root string) (map[string]string, error) {
	all, err := listPackages(root)
	if err != nil {
		return nil, err
	}
	page, err := packagesPage(root, all)
	if err != nil {
		return nil, err
	}
	return map[string]string{"docs/img/house.svg": packageDiagram(all), "docs/reference/rooms.md": page}, nil
}
