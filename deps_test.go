// The tests in this directory check rules for the whole module. The rules say which package may import which, what PID 1 must not
// do, and where the documents must agree with the code. Each rule has its reason beside it, and the failure prints the reason.
package hinit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// packageLayers gives each package its layer. A package may import packages of lower layers only. A new package needs a line
// here.
var packageLayers = map[string]int{
	"hinit/cmd/hinit":                9,
	"hinit/cmd/hinit-shim":           6,
	"hinit/cmd/hinit-sandbox-helper": 6,
	"hinit/cmd/hinit-kanban":         8,
	"hinit/cmd/hinit-sandbox":        8,
	"hinit/cmd/hinit-web":            7,

	"hinit/internal/metrics":           5, // only clients of PID 1 link this package, not PID 1
	"hinit/internal/web":               6,
	"hinit/internal/forward":           4,
	"hinit/cmd/hinit-top":              6,
	"hinit/internal/actions":           4,
	"hinit/cmd/hinit-actions":          6,
	"hinit/cmd/hinit-import":           6,
	"hinit/cmd/hinit-isolate":          3,
	"hinit/internal/isolation/confine": 2, // the package runs for a moment in a new process, which then executes the gateway
	"hinit/cmd/hinit-tools":            7,

	"hinit/internal/top":       5, // hinit-top, a client outside PID 1
	"hinit/internal/top/model": 3,
	"hinit/internal/top/feed":  4,
	"hinit/internal/top/frame": 0,

	"hinit/kanban/cli/runner":  6,
	"hinit/kanban/cli/serve":   5,
	"hinit/kanban/cli":         7, // part of kanban; talks to PID 1 as a client
	"hinit/internal/agentcli":  5, // like internal/cli, but for the commands of the agent
	"hinit/internal/cli":       5,
	"hinit/internal/cli/tools": 6, // only hinit-tools links this package, not PID 1
	"hinit/internal/container": 8, // the package makes the parts of PID 1 and connects them
	"hinit/internal/registry":  6, // the package registers all services; the packages that have services call it

	"hinit/internal/container/bootstatus":  4,
	"hinit/internal/container/prepare":     7, // part of the boot, before the first service starts
	"hinit/internal/container/signals":     5,
	"hinit/internal/container/health":      5,
	"hinit/internal/container/logs":        5,
	"hinit/internal/container/report":      5,
	"hinit/internal/container/leaseholder": 5,
	"hinit/internal/container/timetable":   4,
	"hinit/internal/container/units":       4,
	"hinit/internal/container/initlog":     2,

	"hinit/sandbox":        4, // the package runs outside PID 1
	"hinit/sandbox/inside": 3, // the package runs inside a sandbox's container, so it links no client of a container engine
	"hinit/sandbox/mux":    2,

	"hinit/sandbox/archive":   0, // used by both sides of a copy into or out of a sandbox
	"hinit/sandbox/gate":      2,
	"hinit/sandbox/dockercli": 5,
	"hinit/sandbox/policy":    5,
	"hinit/sandbox/daemon":    5,
	"hinit/sandbox/cli":       6, // executes the requests of package daemon
	"hinit/sandbox/program":   7, // program hinit-sandbox for Docker and similar engines; kubernetes/ has another program

	"hinit/internal/s6/applet":  4,
	"hinit/internal/s6/foreign": 4,
	"hinit/internal/s6/scandir": 4,

	"hinit/internal/s6/personality": 7,

	"hinit/internal/control":         4,
	"hinit/internal/gateways":        7,
	"hinit/internal/gateways/orders": 4,
	"hinit/internal/runs":            4, // PID 1 links this package, and hinit-kanban does so for containers without PID 1
	"hinit/internal/runs/local":      5, // the package runs outside PID 1
	"hinit/internal/reexec":          4,

	"hinit/internal/imports":   3, // only hinit-import links this package, not PID 1
	"hinit/internal/wholefile": 0, // programs outside PID 1 link this package

	"hinit/internal/control/show": 1, // formats answers of the control API for people
	"hinit/internal/cmdline":      2,

	"hinit/client":                 -1, // the package has the types of the control API and imports nothing of hinit
	"hinit/client/dial":            1,  // clients link this package, but PID 1 does not
	"hinit/internal/boot":          3,
	"hinit/internal/boot/kept":     0,
	"hinit/internal/boot/lookup":   3, // clients of PID 1 link this package
	"hinit/internal/boot/keep":     4, // only hinit-tools links this package
	"hinit/internal/boot/identity": 4, // only hinit-tools links this package
	"hinit/internal/volume":        4, // only hinit-tools links this package; PID 1 starts hinit-tools as the boot program
	"hinit/profiles":               3,
	"hinit/profiles/manage":        4, // only hinit-tools links this package
	"hinit/profiles/archive":       1, // only hinit-tools links this package
	"hinit/cmd/hinit-profile":      3,

	"hinit/internal/probe": 4, // the package reads state files of gateways, as profiles does

	"hinit/supervisor": 2,
	"hinit/kanban":     2, // kanban has a program of its own, hinit-kanban; PID 1 never links the package

	"hinit/internal/lease":        1,
	"hinit/internal/notify":       1,
	"hinit/internal/proc":         1,
	"hinit/internal/proc/limits":  2, // hinit-tools links this package, and applies the limits in each new process that has limits
	"hinit/logrotate":             2,
	"hinit/internal/tuning":       1,
	"hinit/internal/watch":        1,
	"hinit/internal/watch/shared": 2,
	"hinit/shim":                  2, // only hinit-shim links this package
	"hinit/shim/agentuser":        1,
	"hinit/shim/lifecycle":        1, // the shim and hinit-tools link this package
	"hinit/shim/identity":         1, // the shim and the s6 tools link this package

	"hinit/logrotate/archive": 1,
	"hinit/logrotate/reader":  3, // clients of PID 1 link this package
	"hinit/logrotate/packer":  1, // only hinit-tools links this package
	"hinit/logrotate/gzipped": 1, // type of the request that logrotate sends to the packer

	"hinit/internal/faultinject": -1, // injects faults at calls of the kernel; below every package that makes such calls
	"hinit/internal/early":       -2, // the package runs before all other packages are initialized
	"hinit/internal/guard":       -2, // every goroutine calls the package when it starts
	"hinit/internal/pty":         -1, // terminals for commands: hinit shell, and both sides of a sandbox
	"hinit/internal/pause":       -2, // the package waits until a time has passed or a context has ended

	// This package limits how many calls may wait for a disk at the same time. Most packages use it through fsutil.
	"hinit/internal/blocking":        -1,
	"hinit/internal/procstat":        -1, // used by every package that reads /proc
	"hinit/internal/isolation/peer":  2,  // the package reads the status of the process at the other end of a socket
	"hinit/internal/entry/bare":      -1, // code that may run before the Go runtime
	"hinit/internal/isolation":       0,  // the arguments that PID 1 passes to hinit-isolate
	"hinit/internal/isolation/ports": 0,  // hinit-isolate and hinit-tools link this package
	"hinit/internal/dotenv":          -1, // parses .env for profiles, and env_file for a process that starts
	// This package checks who can write a file before root reads or runs it. The shim uses it too.
	"hinit/internal/trust": -1,

	"hinit/internal/account":    0,
	"hinit/internal/account/db": 1,
	"hinit/internal/backoff":    0,
	"hinit/internal/config":     0,
	"hinit/internal/varfiles":   2,  // clients of PID 1 link this package
	"hinit/internal/cpulist":    -1, // parses lists of processors for config and proc
	"hinit/internal/nearest":    -1, // suggests the right word for a mistyped key or command
	"hinit/internal/yamltext":   -1, // parses the YAML of the configuration file
	"hinit/internal/cronspec":   -1, // the package checks schedules in the configuration
	"hinit/internal/entry":      0,  // the package runs before the Go runtime starts
	"hinit/internal/entry/ask":  3,  // only hinit-tools links this package
	"hinit/internal/fsutil":     0,

	"hinit/internal/fsutil/owntree": 1, // programs that repair owners of files link this package, but PID 1 does not
	"hinit/internal/s6/formats":     0,
	"hinit/internal/loglevel":       0,
	"hinit/internal/redact":         -1, // the package hides secrets in output; config marks secret keys with the same list
	"hinit/internal/testkit":        0,
	"hinit/internal/procusage":      2,
	"hinit/internal/testproc":       1,
	"hinit/internal/version":        0,
}

// nonProductTrees lists the trees that no package of the product may import, each with the reason.
var nonProductTrees = map[string]string{
	"hinit/examples":         "an example must be possible in any language, so nothing of hinit needs it",
	"hinit/internal/gendocs": "a tool for developers",
	"hinit/test":             "tests of the finished binaries",
}

// sameLayerOrder lists packages of the same layer. Each may import the packages before it in the list.
var sameLayerOrder = []string{"hinit/internal/boot", "hinit/internal/boot/lookup", "hinit/logrotate/archive", "hinit/logrotate/gzipped", "hinit/logrotate/packer", "hinit/internal/s6/foreign", "hinit/internal/s6/scandir", "hinit/internal/s6/personality"}

func TestImportsGoDown(t *testing.T) {
	for _, line := range goList(t, nil, "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...") {
		words := strings.Fields(line)
		pkg, imports := words[0], words[1:]
		if pkg == "hinit" {
			continue // The root directory contains tests only.
		}
		if _, beside := nearestEntry(pkg, nonProductTrees); beside {
			if strings.HasPrefix(pkg, "hinit/examples") {
				for _, dep := range imports {
					if strings.HasPrefix(dep, "hinit/") && !strings.HasPrefix(dep, "hinit/examples/") {
						t.Errorf("%s imports %s: an example talks to hinit through files, signals and exit codes only", pkg, dep)
					}
				}
			}
			continue
		}
		floor, known := nearestEntry(pkg, packageLayers)
		if !known {
			t.Errorf("%s has no floor: decide what it may import and add it to the table in deps_test.go", pkg)
			continue
		}
		for _, dep := range imports {
			if !strings.HasPrefix(dep, "hinit/") {
				continue
			}
			if why, beside := nearestEntry(dep, nonProductTrees); beside {
				t.Errorf("%s imports %s, which is not part of the house: %s", pkg, dep, why)
				continue
			}
			to, known := nearestEntry(dep, packageLayers)
			if at := slices.Index(sameLayerOrder, dep); at >= 0 && at < slices.Index(sameLayerOrder, pkg) {
				continue
			}
			if known && to >= floor {
				t.Errorf("%s (floor %d) imports %s (floor %d): imports go down only", pkg, floor, dep, to)
			}
		}
	}
}

// forbiddenPackages lists, for each program, the packages that it must not link, with the reason.
var forbiddenPackages = map[string]map[string]string{
	"./cmd/hinit": {
		"os/exec":                      "it waits for children by itself and would steal them from the supervisor, or be robbed by it",
		"os/user":                      "with cgo it loads NSS; internal/account reads the same files",
		"github.com/docker/docker":     "the Docker client, its dependencies and its credential helpers stay out of PID 1",
		"github.com/moby/moby":         "the Docker client, its dependencies and its credential helpers stay out of PID 1",
		"hinit/kanban":                 "the task board and its database have a binary of their own",
		"modernc.org/sqlite":           "a database engine has no place in PID 1",
		"hinit/profiles/archive":       "archives of profiles are made at a keyboard",
		"hinit/sandbox":                "sandboxes have a program of their own; PID 1 must not grow with them",
		"hinit/internal/actions":       "actions have a program of their own; PID 1 waits for no web server",
		"hinit/internal/forward":       "logs are sent by a program of their own",
		"hinit/internal/web":           "the page has a program of its own; PID 1 answers only clients of this container",
		"hinit/internal/metrics":       "metrics have a program of their own; PID 1 must not grow with them",
		"hinit/internal/top":           "the screen is a client of PID 1, with a program of its own",
		"hinit/internal/boot/identity": "the boot program changes /etc",
		"hinit/internal/account/db":    "the boot program changes /etc",
		"hinit/internal/volume":        "the boot program does the work of the boot on the data volume",
		"hinit/internal/cli":           "the commands have a program of their own",
		"hinit/internal/cli/tools":     "the commands have a program of their own",
		"hinit/internal/cmdline":       "the commands have a program of their own",
		"hinit/client/dial":            "PID 1 is asked, and asks no hinit",
		"hinit/internal/proc/limits":   "what a process sets about itself is not PID 1's work",
		"hinit/shim/lifecycle":         "PID 1 has an API for orders; these are words of the agent's command line",
		"hinit/shim/identity":          "PID 1 starts processes as other users, and never becomes one",
		"hinit/logrotate/packer":       "the boot program compresses archives",
		"hinit/internal/watch/shared":  "each room of PID 1 has a Set, so that a hanging disk holds up one of them only",
		"hinit/logrotate/reader":       "clients read the logs; PID 1 writes them",
		"hinit/internal/s6/applet":     "the tools of s6 ask PID 1 and are no part of it",
		"charm.land":                   "the screen is a client of PID 1, with a program of its own",
		"testing":                      "tests are not shipped",
		"html/template":                "keeps the linker from dropping methods",
		"text/template":                "keeps the linker from dropping methods",
	},
	"./cmd/hinit-shim": {
		"net":                      "it has nothing to connect to, and runs before every command of the agent",
		"net/http":                 "it has nothing to connect to, and runs before every command of the agent",
		"encoding/json":            "reflection costs start-up time",
		"regexp":                   "costs start-up time; package strings is enough",
		"text/template":            "costs start-up time, and keeps the linker from dropping methods",
		"go.yaml.in/yaml/v3":       "root parses nothing larger than two lines",
		"os/exec":                  "the shim replaces itself and starts nothing",
		"github.com/docker/docker": "never in a binary of PID 1's container",
	},
}

func TestBinariesStaySmall(t *testing.T) {
	for cmd, forbidden := range forbiddenPackages {
		deps := goList(t, []string{"CGO_ENABLED=0"}, "-deps", cmd)
		if len(deps) < 20 {
			t.Fatalf("go list names only %q for %s", deps, cmd)
		}
		for _, dep := range deps {
			if why, bad := nearestEntry(dep, forbidden); bad {
				t.Errorf("%s reaches %s: %s", cmd, dep, why)
			}
		}
	}
}

// allowedModules lists the modules that PID 1 may link besides the standard library. Adding one needs a decision of the
// maintainers.
var allowedModules = []string{
	"hinit", "github.com/fsnotify/fsnotify", "github.com/netresearch/go-cron", "go.yaml.in/yaml/v3", "golang.org/x/sys", "gopkg.in/natefinch/lumberjack.v2",
}

func TestModulesOfPID1(t *testing.T) {
	for _, line := range goList(t, nil, "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./cmd/hinit", "./cmd/hinit-shim") {
		if line != "" && !slices.Contains(allowedModules, line) {
			t.Errorf("the binaries link module %s: a dependency of PID 1 needs a decision record and a line here", line)
		}
	}
}

// forbiddenCalls maps forbidden functions, as "import path.Name", to the reasons. Only the allowed places
// may use them.
type forbiddenCalls map[string]string

var (
	processCalls = forbiddenCalls{
		"os.StartProcess":              "only internal/proc starts processes",
		"os.FindProcess":               "only internal/proc waits for processes",
		"syscall.ForkExec":             "only internal/proc starts processes",
		"syscall.StartProcess":         "only internal/proc starts processes",
		"syscall.Wait4":                "only internal/proc waits: who reaps what it does not own steals an exit status",
		"golang.org/x/sys/unix.Wait4":  "only internal/proc waits: who reaps what it does not own steals an exit status",
		"golang.org/x/sys/unix.Waitid": "only internal/proc waits: who reaps what it does not own steals an exit status",
	}
	inotifyCalls = forbiddenCalls{
		"golang.org/x/sys/unix.InotifyInit1":    "only internal/watch uses inotify",
		"golang.org/x/sys/unix.InotifyInit":     "only internal/watch uses inotify",
		"golang.org/x/sys/unix.InotifyAddWatch": "only internal/watch uses inotify",
	}
	alwaysForbidden = forbiddenCalls{
		"os/signal.Ignore": "an ignored signal stays ignored in every child after exec; handle it instead",
	}
	clockCalls = forbiddenCalls{
		"time.Now": noClockReason, "time.Since": noClockReason, "time.Until": noClockReason, "time.After": noClockReason, "time.AfterFunc": noClockReason,
		"time.NewTimer": noClockReason, "time.NewTicker": noClockReason, "time.Tick": noClockReason, "time.Sleep": noClockReason,
	}
)

const noClockReason = "the machine gets the time as an argument, so that it can be tested with any"

func TestOnlyProcStartsAndWaits(t *testing.T) {
	eachGoFile(t, func(path string, f *ast.File) {
		switch {
		case strings.HasSuffix(path, "_test.go"):
			return
		case hasAnyPrefix(path, "internal/proc/", "sandbox/gate/", "internal/testproc/", "internal/testkit/", "internal/gendocs/", "examples/", "test/", "kubernetes/internal/cluster/"):
			return
		}
		if imports(f, "os/exec") {
			t.Errorf("%s imports os/exec: only internal/proc starts processes", path)
		}
		reportForbidden(t, path, f, processCalls)
	})
}

func TestOnlyWatchUsesInotify(t *testing.T) {
	eachGoFile(t, func(path string, f *ast.File) {
		if strings.HasSuffix(path, "_test.go") || hasAnyPrefix(path, "internal/watch/", "test/") {
			return
		}
		if imports(f, "github.com/fsnotify/fsnotify") {
			t.Errorf("%s imports fsnotify: only internal/watch uses inotify; its contract says what happens at its limits", path)
		}
		reportForbidden(t, path, f, inotifyCalls)
	})
}

func TestNoSignalIsIgnored(t *testing.T) {
	eachGoFile(t, func(path string, f *ast.File) {
		if !hasAnyPrefix(path, "internal/testproc/") { // internal/testproc contains programs that misbehave on purpose.
			reportForbidden(t, path, f, alwaysForbidden)
		}
	})
}

func TestMachineIsPure(t *testing.T) {
	seen := false
	eachGoFile(t, func(path string, f *ast.File) {
		if !strings.HasPrefix(path, "supervisor/machine") || strings.HasSuffix(path, "_test.go") {
			return
		}
		seen = seen || path == "supervisor/machine.go"
		reportForbidden(t, path, f, clockCalls)
		for _, spec := range f.Imports {
			pkg := importPath(spec)
			if _, bad := nearestEntry(pkg, map[string]string{"os": "", "net": "", "syscall": "", "golang.org/x/sys": "", "io": "", "sync": "", "context": "", "hinit/internal/proc": ""}); bad {
				t.Errorf("%s imports %s: the machine is a function of its arguments and does nothing by itself", path, pkg)
			}
		}
	})
	if !seen {
		t.Error("supervisor/machine.go is gone; the rule needs its new name")
	}
}

func TestTheModelOfTheScreenIsPure(t *testing.T) {
	eachGoFile(t, func(path string, f *ast.File) {
		if !hasAnyPrefix(path, "internal/top/model/", "internal/top/frame/") || strings.HasSuffix(path, "_test.go") {
			return
		}
		reportForbidden(t, path, f, clockCalls)
		for _, spec := range f.Imports {
			pkg := importPath(spec)
			if _, bad := nearestEntry(pkg, map[string]string{"os": "", "net": "", "syscall": "", "golang.org/x/sys": "", "io": "", "sync": "", "context": "", "charm.land": "", "hinit/internal/top/feed": ""}); bad {
				t.Errorf("%s imports %s: the screen is a function of what it was told, so that it can be tested without a terminal", path, pkg)
			}
		}
	})
}

func TestSupervisorHasNoLock(t *testing.T) {
	eachGoFile(t, func(path string, f *ast.File) {
		if strings.HasPrefix(path, "supervisor/") && !strings.HasSuffix(path, "_test.go") && imports(f, "sync") {
			t.Errorf("%s imports sync: one goroutine owns what changes, readers get snapshots, so that no reader can hold up PID 1", path)
		}
	})
}

// reportForbidden reports every use of one of the functions, whether the source calls it or only passes it as a value.
func reportForbidden(t *testing.T, path string, f *ast.File, bad forbiddenCalls) {
	t.Helper()
	names := make(map[string]string) // Import path by the name of the package in this file.
	for _, spec := range f.Imports {
		pkg := importPath(spec)
		name := pkg[strings.LastIndex(pkg, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = pkg
		if name == "." {
			t.Errorf("%s imports %s with a dot, which hides what it uses", path, pkg)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok {
				if why, is := bad[names[x.Name]+"."+sel.Sel.Name]; is {
					t.Errorf("%s uses %s.%s: %s", path, x.Name, sel.Sel.Name, why)
				}
			}
		}
		return true
	})
}

func imports(f *ast.File, pkg string) bool {
	return slices.ContainsFunc(f.Imports, func(s *ast.ImportSpec) bool { return importPath(s) == pkg })
}

func importPath(s *ast.ImportSpec) string {
	path, _ := strconv.Unquote(s.Path.Value)
	return path
}

type parsedFile struct {
	path string
	file *ast.File
}

// parsedFiles parses the Go files of the module once for all tests. It skips files that tests write, or read as data.
var parsedFiles = sync.OnceValues(func() (list []parsedFile, err error) {
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			name := d.Name()
			if path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "dist" || name == "tools") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		list = append(list, parsedFile{filepath.ToSlash(path), f})
		return err
	})
	return list, err
})

// eachGoFile calls each for every Go file of the module. The callback must not change the syntax tree, because all tests
// share it.
func eachGoFile(t *testing.T, each func(path string, f *ast.File)) {
	t.Helper()
	list, err := parsedFiles()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 50 {
		t.Fatalf("only %d Go files found", len(list))
	}
	for _, s := range list {
		each(s.path, s.file)
	}
}

// nearestEntry returns the table's entry for path, or else for the nearest ancestor of path that has one.
func nearestEntry[V any](path string, table map[string]V) (v V, ok bool) {
	for p := path; ; {
		if v, ok = table[p]; ok {
			return v, true
		}
		i := strings.LastIndex(p, "/")
		if i < 0 {
			return v, false
		}
		p = p[:i]
	}
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

func goList(t *testing.T, env []string, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Env = append(append(os.Environ(), "GOOS=linux"), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %q: %v", args, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
