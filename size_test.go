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
	"supervisor.Service":                  "what readers get of a service, flat because the API's document is",
	"kanban.Task":                         "the columns of a table that others define",
	"internal/s6/scandir.Scanner":         "what others reach it by, and all that its goroutine alone knows",
	"sandbox.Spec":                        "what an engine makes a container of",
	"sandbox.Options":                     "the options that others define, one a variable",
	"sandbox/mux.Open":                    "a message of a protocol",
	"examples/agent/internal/knobs.Knobs": "one variable each",
	"test/bench/compare.bench":            "the flags of a command",
}

// TestNothingGrowsBeyondAReader holds files and structs to a size. A table of the language or of the kernel may have a reason to be
// larger; a room has none.
func TestNothingGrowsBeyondAReader(t *testing.T) {
	seen := make(map[string]bool)
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
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			body, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			fields := 0
			for _, f := range body.Fields.List {
				fields += max(1, len(f.Names))
			}
			name := filepath.Dir(path) + "." + spec.Name.Name
			seen[name] = fields > mostFields
			if fields > mostFields && manyFields[name] == "" {
				t.Errorf("%s: %s has %d fields, more than %d: group what belongs together, or say in size_test.go why not", path, name, fields, mostFields)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range manyFields {
		if !seen[name] {
			t.Errorf("the exception for %s is not needed any more", name)
		}
	}
}
