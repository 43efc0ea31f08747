package hinit_test

import (
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// trustTable is the file that says who can write each thing that programs of hinit read. docs/reference/trust.md is
// generated from it.
const trustTable = "internal/gendocs/trust.txt"

// inputFunctions lists the functions by which a program gets input from outside: a file, a directory entry, a variable or a
// peer of a socket.
var inputFunctions = map[string][]string{
	"os": {
		"DirFS", "Environ", "Getenv", "LookupEnv", "Lstat", "Open", "OpenFile", "OpenRoot", "ReadDir", "ReadFile", "Readlink", "Stat",
	},
	"path/filepath": {"EvalSymlinks", "Glob", "Walk", "WalkDir"},
	"net": {
		"Dial", "Dialer.Dial", "Dialer.DialContext", "DialTimeout", "DialUnix", "FileConn", "FileListener", "FilePacketConn", "Listen", "ListenConfig.Listen",
		"ListenPacket", "ListenUnix", "ListenUnixgram",
	},
	"net/http": {"Server.Serve"},
	"syscall":  {"Environ", "Getenv", "Open", "Read", "Recvmsg", "Stat"},
	"golang.org/x/sys/unix": {
		"Accept4", "Access", "Connect", "Faccessat", "Fgetxattr", "Fstatat", "Fstatfs", "GetsockoptUcred", "Getxattr", "InotifyAddWatch", "Listen", "Lstat", "Open",
		"Openat", "Openat2", "Pread", "Read", "ReadDirent", "Readlinkat", "Recvfrom", "Recvmsg", "Stat", "Statfs",
	},
	"hinit/internal/fsutil": {
		"Dir.CheckExists", "Dir.CreatedAt", "Dir.ConnectSocket", "Dir.EachName", "Dir.Lock", "Dir.Lstat", "Dir.Open", "Dir.OpenAppend", "Dir.OpenUpdate",
		"Dir.ReadDir", "Dir.ReadFile", "Dir.ReadAtMost",
	},
	"hinit/internal/trust":     {"Check", "Open", "OpenAnyMount", "Stat"},
	"hinit/internal/config":    {"ReadFile"},
	"hinit/internal/wholefile": {"Open", "OpenForRoot", "Read"},
}

// unshippedDirs lists the directories whose code is in no shipped program.
var unshippedDirs = []string{"examples", "internal/gendocs", "internal/testkit", "internal/testproc", "test", "tools", "internal/faultinject"}

// inputCalls lists every place of the module that calls one of inputFunctions, as "directory/file.go function".
func inputCalls(t *testing.T) []string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}\t{{.Dir}}\t{{join .GoFiles \" \"}}", "./...")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := make(map[string]string)
	type pkg struct{ path, dir, files string }
	var own []pkg
	for line := range bytes.Lines(out) {
		f := strings.Split(strings.TrimSuffix(string(line), "\n"), "\t")
		exports[f[0]] = f[1]
		if strings.HasPrefix(f[0], "hinit/") {
			own = append(own, pkg{f[0], f[2], f[3]})
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var found []string
	for _, p := range own {
		dir := strings.TrimPrefix(p.path, "hinit/")
		if slices.ContainsFunc(unshippedDirs, func(n string) bool { return dir == n || strings.HasPrefix(dir, n+"/") }) {
			continue
		}
		var files []*ast.File
		for name := range strings.FieldsSeq(p.files) {
			f, err := parser.ParseFile(fset, filepath.Join(p.dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
		if _, err := (&types.Config{Importer: imports}).Check(p.path, fset, files, info); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			file := dir + "/" + filepath.Base(fset.Position(f.Pos()).Filename)
			for _, decl := range f.Decls {
				name := "var"
				if fn, is := decl.(*ast.FuncDecl); is {
					name = fn.Name.Name
				}
				ast.Inspect(decl, func(n ast.Node) bool {
					if id, is := n.(*ast.Ident); is && isInput(info.Uses[id]) {
						found = append(found, file+" "+name)
					}
					return true
				})
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// isInput reports whether o is one of inputFunctions, or a variable that gives input from outside.
func isInput(o types.Object) bool {
	if v, is := o.(*types.Var); is && v.Pkg() != nil { // Body is the body of a request or answer, and Stdin is standard input.
		return v.Pkg().Path() == "net/http" && v.Name() == "Body" || v.Pkg().Path() == "os" && v.Name() == "Stdin"
	}
	fn, is := o.(*types.Func)
	if !is || fn.Pkg() == nil {
		return false
	}
	name := fn.Name()
	if recv := fn.Signature().Recv(); recv != nil {
		of := recv.Type()
		if p, is := of.(*types.Pointer); is {
			of = p.Elem()
		}
		if named, is := of.(*types.Named); is {
			name = named.Obj().Name() + "." + name
		}
	}
	if !slices.Contains(inputFunctions[fn.Pkg().Path()], name) {
		return false
	}
	calledInputs[fn.Pkg().Path()+"."+name] = true
	return true
}

// calledInputs collects the inputFunctions that the module calls at least once.
var calledInputs = make(map[string]bool)

// TestEveryReaderHasARow checks that docs/reference/trust.md names every function of hinit that reads input from
// outside, and no function that reads none.
func TestEveryReaderHasARow(t *testing.T) {
	named := make(map[string]bool)
	eachTrustRow(t, func(_, key, value string) {
		words := strings.Fields(value)
		for _, function := range words[min(1, len(words)):] {
			if in := words[0] + " " + function; key == "in" && named[in] {
				t.Errorf("two rows of %s name %s", trustTable, in)
			} else if key == "in" {
				named[in] = true
			}
		}
	})
	found := inputCalls(t)
	for path, names := range inputFunctions {
		for _, name := range names {
			if strings.HasPrefix(path, "hinit/") && !calledInputs[path+"."+name] {
				t.Errorf("nothing calls %s of %s: if it has another name now, give it that name in the list of readers", name, path)
			}
		}
	}
	for _, reader := range found {
		if !named[reader] {
			t.Errorf("%s reads something from outside, and no row of "+trustTable+" names it: add it to the row of what it reads, or add a row with a test that tries the worst", reader)
		}
	}
	for _, in := range slices.Sorted(maps.Keys(named)) {
		if !slices.Contains(found, in) {
			t.Errorf("%s reads nothing from outside: remove it from %s", in, trustTable)
		}
	}
	if len(found) < 400 {
		t.Errorf("only %d readers were found", len(found))
	}
}

// TestEveryRowOfTrustSaysWhoAndNamesItsTests checks that each row of trustTable says who writes the input, the worst
// that can happen and who reads it, and that the tests it names exist.
func TestEveryRowOfTrustSaysWhoAndNamesItsTests(t *testing.T) {
	has := make(map[string]map[string]bool)
	eachTrustRow(t, func(row, key, value string) {
		if has[row] == nil {
			has[row] = make(map[string]bool)
		}
		has[row][key] = value != ""
		if key != "test" {
			return
		}
		dir, name, _ := strings.Cut(value, ".")
		if dir == "test/script" {
			if _, err := os.Stat("test/script/testdata/" + name + ".txtar"); err != nil {
				t.Errorf("the row %q: %v", row, err)
			}
			return
		}
		files, _ := filepath.Glob(dir + "/*_test.go")
		if !slices.ContainsFunc(files, func(file string) bool {
			text, _ := os.ReadFile(file)
			return bytes.Contains(text, []byte("\nfunc "+name+"("))
		}) {
			t.Errorf("the row %q names the test %s of %s, which does not exist", row, name, dir)
		}
	})
	for row, keys := range has {
		if len(keys) != 4 || !keys["by"] || !keys["worst"] || !keys["test"] || !keys["in"] {
			t.Errorf("the row %q has %v: it needs a line of each of by, worst, test and in", row, keys)
		}
	}
}

// eachTrustRow calls line for each line of trustTable. row is the name of the row that the line belongs to.
func eachTrustRow(t *testing.T, line func(row, key, value string)) {
	t.Helper()
	text, err := os.ReadFile(trustTable)
	if err != nil {
		t.Fatal(err)
	}
	row := ""
	for l := range strings.Lines(string(text)) {
		key, value, is := strings.Cut(strings.TrimSuffix(l, "\n"), ": ")
		switch {
		case key == "read":
			row = value
		case is && !strings.HasPrefix(key, "#"):
			line(row, key, value)
		}
	}
}
