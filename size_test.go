package hinit_test

import (
	"bytes"
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mostLines  = 450 // of a file: what a reader can hold in mind
	mostFields = 20  // of a struct
)

// manyFields are the structs with more fields than that, each with its reason.
var manyFields = map[string]string{
	"client.Init":                         "a document of the API: its keys are read by people and programs",
	"client.Service":                      "a document of the API",
	"supervisor.Policy":                   "the settings of a service, one a rule of the machine; their names are in the handover",
	"supervisor.Service":                  "what readers get of a service, flat because the API's document is",
	"kanban.Task":                         "the columns of a table that others define",
	"internal/s6/scandir.Scanner":         "what others reach it by, and all that its goroutine alone knows",
	"sandbox.Spec":                        "what an engine makes a container of",
	"sandbox.Description":                 "a document: its keys are read by people and programs",
	"sandbox.Options":                     "the options that others define, one a variable",
	"examples/agent/internal/knobs.Knobs": "one variable each",
	"test/bench/compare.bench":            "the flags of a command",
}

// grown are the structs that exceed the limit only when the fields of embedded structs count. They may only shrink.
var grown = map[string]int{
	"internal/boot/volume.repair":  25,
	"internal/config.Agent":        21,
	"internal/config.Service":      24,
	"internal/container.container": 26,
	"internal/container.handover":  30,
	"internal/control.Core":        23,
	"internal/gateways.Keeper":     23,
	"internal/probe.target":        22,
	"internal/web.Server":          24,
	"internal/web.hub":             24,
	"internal/web.servicePage":     27,
	"kanban.watched":               43,
	"logrotate.console":            27,
	"logrotate.file":               27,
	"profiles.Watcher":             31,
	"supervisor.Loop":              22,
	"supervisor.Machine":           21,
	"supervisor.service":           49,
	"supervisor.unit":              22,
}

// TestNothingGrowsBeyondAReader holds files and structs to a size. A table of the language or of the kernel may have a reason to be
// larger; a room has none. The fields of an embedded struct count.
func TestNothingGrowsBeyondAReader(t *testing.T) {
	structs := make(map[string]*ast.StructType) // by directory and name
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (strings.HasPrefix(path, ".") && path != "." || path == "dist") {
			return cmp.Or(err, filepath.SkipDir)
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if lines := bytes.Count(source, []byte("\n")); lines > mostLines {
			t.Errorf("%s has %d lines, more than %d: split it by what its parts do", path, lines, mostLines)
		}
		tree, err := parser.ParseFile(token.NewFileSet(), path, source, 0)
		if err != nil {
			return err
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if body, ok := spec.Type.(*ast.StructType); ok {
					structs[filepath.Dir(path)+"."+spec.Name.Name] = body
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range structs {
		if fields := fieldsOf(structs, name); fields > max(mostFields, grown[name]) && manyFields[name] == "" {
			t.Errorf("%s has %d fields, more than %d: group what belongs together, or say in size_test.go why not", name, fields, mostFields)
		}
	}
	for name := range manyFields {
		if fieldsOf(structs, name) <= mostFields {
			t.Errorf("the exception for %s is not needed any more", name)
		}
	}
	for name, most := range grown {
		if fields := fieldsOf(structs, name); fields < most {
			t.Errorf("%s has %d fields now: lower its number in size_test.go, or take it out", name, fields)
		}
	}
}

// fieldsOf counts the fields of a struct with the fields of the structs that it embeds. An embedded type that is no struct of ours is one.
func fieldsOf(structs map[string]*ast.StructType, name string) (n int) {
	body := structs[name]
	if body == nil {
		return 0
	}
	for _, f := range body.Fields.List {
		if len(f.Names) > 0 {
			n += len(f.Names)
			continue
		}
		in := ""
		switch of := f.Type.(type) { // a pointer holds one thing
		case *ast.Ident:
			in = strings.TrimSuffix(name, name[strings.LastIndexByte(name, '.'):]) + "." + of.Name
		case *ast.SelectorExpr:
			for other := range structs {
				if base := filepath.Base(other); base == of.X.(*ast.Ident).Name+"."+of.Sel.Name {
					in = other
				}
			}
		}
		n += max(1, fieldsOf(structs, in))
	}
	return n
}
