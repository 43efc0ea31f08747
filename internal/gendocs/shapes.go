package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// printed is what one form of a command prints with --json.
type printed struct {
	form  string
	many  string // "", "list" or "lines"
	shape string // package.Type
}

// forms are all of them. [jsonPage] fails for a command that takes --json and is not here.
var forms = []printed{
	{"status", "", "client.Status"},
	{"explain", "", "tools.explanation"},
	{"tree", "list", "tools.treeBranch"},
	{"start", "lines", "client.Service"},
	{"stop", "lines", "client.Service"},
	{"restart", "lines", "client.Service"},
	{"run-once", "lines", "client.Service"},
	{"signal", "lines", "client.Service"},
	{"checks", "list", "tools.checksOf"},
	{"profile list", "list", "tools.profileRow"},
	{"profile create", "", "tools.profileRow"},
	{"profile delete", "", "tools.profileRow"},
	{"profile rename", "", "tools.profileRow"},
	{"profile show", "", "tools.profileRow"},
	{"logs", "lines", "tools.logLine"},
	{"events", "lines", "client.Event"},
	{"wait", "", "tools.waitReport"},
	{"reload", "", "client.ReloadReply"},
	{"topology", "", "client.TopologyReply"},
	{"reexec", "", "tools.reexecReport"},
	{"config", "list", "client.ConfigEntry"},
	{"config check", "", "tools.configReport"},
	{"doctor", "list", "client.Finding"},
	{"healthcheck", "", "client.Health"},
	{"version", "", "version.Info"},
	{"seed", "", "tools.seedReport"},
	{"isolate", "list", "tools.homeMove"},
}

// shapeDirs are where the types are.
var shapeDirs = []string{"client", "internal/cli", "internal/cli/tools", "internal/version"}

const jsonHead = `# What the commands print with --json

<!-- Generated from the Go types by internal/gendocs. Do not edit. -->

Every command that prints something takes ` + "`--json`" + `, unless its output has another format. Keys may be added at any time; none changes its
meaning without a new ` + "`version`" + ` in the status.

The type is behind each key; a key without a type is text, and texts are a list of it. A key with a question mark may be missing. Without a value a text is empty, a number 0,
and a key that may be null is null. A list is never null. A time is RFC 3339, in UTC unless it has an offset.

`

// jsonPage is the page about --json. commandLine is that about the commands, which says who takes it.
func jsonPage(root, commandLine string) (string, error) {
	types, err := shapesIn(root)
	if err != nil {
		return "", err
	}
	known := make(map[string]bool)
	var b strings.Builder
	b.WriteString(jsonHead)
	var queue []string
	for i, f := range forms {
		verb, _, _ := strings.Cut(f.form, " ")
		known[verb] = true
		queue = append(queue, f.shape)
		separator := "- "
		if i > 0 && forms[i-1].shape == f.shape && forms[i-1].many == f.many {
			separator = ", "
		}
		fmt.Fprintf(&b, "%s`%s`", separator, f.form)
		if i+1 == len(forms) || forms[i+1].shape != f.shape || forms[i+1].many != f.many {
			what := map[string]string{"": "%s", "list": "a list of %s", "lines": "a line for each %s"}[f.many]
			fmt.Fprintf(&b, ": "+what+"\n", anchor(f.shape))
		}
	}
	takes := regexp.MustCompile(`(?m)^hinit ([\w-]+).*--json`).FindAllStringSubmatch(commandLine, -1)
	for _, verb := range takes {
		if !known[verb[1]] {
			return "", fmt.Errorf("cannot say what hinit %s prints with --json: it is not in the list of internal/gendocs/shapes.go", verb[1])
		}
		delete(known, verb[1])
	}
	if len(known) > 0 {
		return "", fmt.Errorf("cannot find --json in the usage of %v", known)
	}
	done := make(map[string]bool)
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if done[name] {
			continue
		}
		done[name] = true
		t := types[name]
		if t == nil {
			return "", fmt.Errorf("cannot find the type %s", name)
		}
		pkg, short, _ := strings.Cut(name, ".")
		fmt.Fprintf(&b, "\n## %s\n\n", title(short))
		if strings.Count(t.doc, " ") > 4 { // a shorter one says what the title says
			b.WriteString(escapeCell(t.doc) + "\n\n")
		}
		for _, f := range t.fields {
			value, next := jsonValue(f.kind, pkg)
			mark := ""
			if f.maybe {
				mark = "?"
			}
			if value == "text" {
				value = ""
			}
			meaning := noValue.ReplaceAllString(escapeCell(f.doc), "")
			if meaning != "" {
				meaning = ": " + meaning
			}
			fmt.Fprintf(&b, "- `%s`%s%s\n", f.key, strings.TrimRight(mark+" "+value, " "), meaning)
			if next != "" {
				queue = append(queue, next)
			}
		}
	}
	return b.String(), nil
}

// shape is a struct that becomes a JSON object.
type shape struct {
	doc    string
	fields []field
}

type field struct {
	key, doc string
	kind     ast.Expr
	maybe    bool
}

func shapesIn(root string) (map[string]*shape, error) {
	types := make(map[string]*shape)
	for _, dir := range shapeDirs {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("cannot find the types of %s: %w", dir, cmp.Or(err, os.ErrNotExist))
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, fmt.Errorf("cannot read the types of %s: %w", dir, err)
			}
			for _, d := range f.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.TYPE {
					continue
				}
				for _, s := range g.Specs {
					spec := s.(*ast.TypeSpec)
					if st, ok := spec.Type.(*ast.StructType); ok {
						types[filepath.Base(dir)+"."+spec.Name.Name] = shapeOf(st, sentence(cmp.Or(g.Doc.Text(), spec.Doc.Text()), spec.Name.Name))
					}
				}
			}
		}
	}
	return types, nil
}

func shapeOf(st *ast.StructType, doc string) *shape {
	t := &shape{doc: doc}
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		raw, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			continue
		}
		key, options, _ := strings.Cut(reflect.StructTag(raw).Get("json"), ",")
		if key == "" || key == "-" {
			continue
		}
		text := oneLine(cmp.Or(strings.TrimSpace(f.Comment.Text()), strings.TrimSpace(f.Doc.Text())))
		t.fields = append(t.fields, field{key: key, doc: text, kind: f.Type, maybe: strings.HasPrefix(options, "omit")})
	}
	return t
}

// jsonValue says what a Go type is in JSON, and which type of ours is in it.
func jsonValue(e ast.Expr, pkg string) (text, next string) {
	switch e := e.(type) {
	case *ast.StarExpr:
		text, next = jsonValue(e.X, pkg)
		return text + " or null", next
	case *ast.ArrayType:
		text, next = jsonValue(e.Elt, pkg)
		if text == "text" {
			return "texts", next
		}
		return "list of " + text, next
	case *ast.MapType:
		text, next = jsonValue(e.Value, pkg)
		return "map of " + text, next
	case *ast.SelectorExpr:
		x, _ := e.X.(*ast.Ident)
		if x == nil || x.Name == "time" {
			return "time", ""
		}
		next = x.Name + "." + e.Sel.Name
		return anchor(next), next
	case *ast.Ident:
		switch e.Name {
		case "string", "bool", "any":
			return map[string]string{"string": "text", "bool": "bool", "any": "anything"}[e.Name], ""
		case "int", "int64", "uint64":
			return "integer", ""
		case "float64":
			return "number", ""
		}
		next = pkg + "." + e.Name
		return anchor(next), next
	}
	return "anything", ""
}

func anchor(name string) string {
	_, short, _ := strings.Cut(name, ".")
	t := title(short)
	return "[" + t + "](#" + strings.ToLower(strings.ReplaceAll(t, " ", "-")) + ")"
}

var hump = regexp.MustCompile(`([a-z])([A-Z])`)

// title makes words of the name of a type.
func title(name string) string {
	words := strings.ToLower(hump.ReplaceAllString(name, "$1 $2"))
	return strings.ToUpper(words[:1]) + words[1:]
}

// sentence is a doc comment without the name that it begins with.
func sentence(doc, name string) string {
	text := oneLine(doc)
	for _, begin := range []string{name + " is ", name + " are ", name + " "} {
		if rest, ok := strings.CutPrefix(text, begin); ok {
			text = rest
			break
		}
	}
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// noValue is the end of a comment that says of one key what the page says of all: what a key without a value is.
var noValue = regexp.MustCompile(`[,;] (""|0|null|missing|absent) (without (one|checks)|(when|where) (there is none|none is|nothing|nothing is wrong|unknown|` +
	`none did|none has changed|it was|it is gone|it has none|no init is reachable|OK)|in (any other state|other events)|before the first( line)?)$`)

var docLink = regexp.MustCompile(`\[([A-Za-z.]+)\]`)

// escapeCell makes a comment text of a page.
func escapeCell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(docLink.ReplaceAllString(text, "`$1`"))
}
