package hinit_test

import (
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unlimitedCallers lists functions of PID 1 that call the file system without the limit of
// internal/blocking, each with its reason. A key is "directory/file.go function", or the file alone
// for all its functions. Before you add a row, count the calls that can wait at the same time. They
// must never outnumber the reserve of threads in internal/tuning/threads.go.
var unlimitedCallers = map[string]string{
	"internal/container/faults_on.go": "not in what is shipped",

	"internal/tuning/limits.go":                     "the boot and Init, which takes the turn, of /proc and /sys",
	"internal/watch/detach.go":                      "the goroutine that reports, once, of /proc",
	"internal/watch/mounts.go":                      "the caller of Manager.Start, of /proc",
	"internal/tuning/threads.go":                    "the boot, of /proc",
	"shim/agentuser/agentuser.go":                   "the boot and the re-execution, of /proc, on an old kernel only",
	"internal/tuning/memory.go":                     "the goroutine that reports, of /proc",
	"profiles/intents.go var":                       "once, of /proc",
	"internal/s6/personality/s6.go Open":            "the boot, of /proc",
	"internal/account/account.go":                   "boot.Agent.CredFor takes the turn; before, the boot has no goroutine",
	"internal/boot/lines.go":                        "the callers of ReportChown have the turn",
	"internal/boot/program.go":                      "stage2 takes the turn",
	"internal/boot/identity.go":                     "the boot, before its first goroutine",
	"internal/boot/prepare.go makeHome":             phaseReason,
	"internal/boot/prepare.go openHomeAsAgent":      phaseReason,
	"internal/boot/prepare.go makeScratchDir":       phaseReason,
	"internal/boot/prepare.go makeOutsideDir":       phaseReason,
	"internal/boot/restrictions.go":                 "stage2 takes the turn",
	"internal/boot/runtime.go":                      "openControl takes the turn",
	"internal/config/load.go servicesOnlyDefaults":  "loadConfig takes the turn",
	"internal/notify/socket.go":                     "Hub.Listen takes the turn",
	"internal/control/listen.go":                    "Endpoint.Open takes the turn, and Reattach",
	"internal/reexec/check.go":                      "Ask takes the turn, or it is the command line",
	"internal/reexec/generation.go FirstGeneration": "before the first goroutine, of /proc",
	"internal/reexec/generation.go DecodeState":     "before the first goroutine, of /proc",
	"internal/reexec/generation.go becomeProgram":   "the supervisor's loop, of /proc",
	"internal/reexec/reserve_pids.go":               "Ask takes the turn, or the supervisor's loop, of /proc",
	"internal/reexec/exec.go":                       "before the first goroutine, of /proc and of memory",
	"internal/s6/scandir/layout.go":                 "free and takeLock take the turn for them",
	"internal/lease/holder.go":                      "as takes the turn; /proc has a Short one",
	"internal/lease/lock.go":                        "as takes the turn",
	"internal/trust/trust.go":                       "loadConfig takes the turn, stage2 and Maker.agentCanWrite",
	"logrotate/archive/archive.go":                  logFileReason,
	"logrotate/console_write.go":                    "one goroutine for each of two consoles: threads of the reserve",
	"logrotate/file.go":                             logFileReason,
	"logrotate/retention.go freeBytes":              logFileReason,
	"logrotate/log.go":                              "the supervisor's loop, of a pipe",
	"supervisor/unit.go readReadiness":              "the supervisor's loop, of a pipe",
	"logrotate/open.go":                             logFileReason,
	"logrotate/read_pace.go":                        "control takes the turn, of a pipe",
}

const (
	phaseReason   = "runPhase takes the turn for every step of the boot"
	logFileReason = "file.turn takes the turn, for one pump of a file at a time"
)

// uncheckedDirs lists directories of PID 1's program that TestWhoWaitsForADiskTakesATurn does not
// search, each with the reason.
var uncheckedDirs = map[string]string{
	"client":                "a client: the command line",
	"internal/control/show": "the command line",
	"internal/fsutil":       "its Actor takes the turn, see fsutil.Actor.In",
	"internal/procstat":     "who calls it takes the turn, see fileCalls",
	"internal/faultinject":  "calls instead of others, in their turn",
	"internal/proc":         "the supervisor's loop, and one of its calls at a time: a thread of the reserve",
}

// fileCalls lists functions that may wait for a disk, by import path.
var fileCalls = map[string][]string{
	"os": {
		"Chmod", "Chown", "CopyFS", "Create", "CreateTemp", "Getwd", "Lchown", "Link", "Lstat", "Mkdir", "MkdirAll", "MkdirTemp", "Open", "OpenFile",
		"OpenRoot", "ReadDir", "ReadFile", "Readlink", "Remove", "RemoveAll", "Rename", "Stat", "Symlink", "Truncate", "WriteFile",
	},
	"path/filepath":           {"EvalSymlinks", "Glob", "Walk", "WalkDir"},
	"syscall":                 {"Chdir", "Fsync", "Lstat", "Mkdir", "Open", "Read", "Rename", "Stat", "Statfs", "Unlink", "Write"},
	"hinit/internal/procstat": {"Read", "ReadAt"},
	"golang.org/x/sys/unix": {
		"Access", "Chdir", "Faccessat", "Fallocate", "Fchmod", "Fchmodat", "Fchown", "Fchownat", "Fdatasync", "Flock", "Fstat", "Fstatat", "Fstatfs", "Fsync",
		"Ftruncate", "Getxattr", "InotifyAddWatch", "Linkat", "Lstat", "Mkdir", "Mkdirat", "Mkfifo", "Mknodat", "Open", "Openat", "Openat2", "Pread", "Pwrite",
		"Read", "ReadDirent", "Readlinkat", "Rename", "Renameat", "Renameat2", "Stat", "Statfs", "Symlinkat", "Sync", "Syncfs", "Unlink", "Unlinkat", "Write",
	},
}

// actorArgument lists functions that return a directory whose operations are limited by internal/blocking
// through an actor. The value is the index of the actor argument.
var actorArgument = map[string]int{"fsutil.OpenDir": 1, "fsutil.OpenNoLink": 1, "fsutil.WithParentDir": 1, "fsutil.MakeReal": 2}

// isLimitedActor reports whether internal/blocking limits operations through this actor. It does not limit
// operations of fsutil.Self, of nil and of the agent's own actor.
func isLimitedActor(actor ast.Expr) bool {
	if call, is := actor.(*ast.CallExpr); is {
		return functionName(call.Fun) != "fsutil.Self"
	}
	name := functionName(actor)
	return name != "nil" && name != "agent.Actor" && name != "p.Agent"
}

// limitingFunctions lists the functions that call their function argument within the limit of
// internal/blocking.
var limitingFunctions = []string{"blocking.Do", "blocking.Get", "blocking.Run", "blocking.DoWithPeer", "DoWithPeer", "c.callLimited", "blocking.Within", "runShortCall"}

// TestWhoWaitsForADiskTakesATurn checks that each call of PID 1 that may wait for a disk uses
// internal/blocking or is listed in unlimitedCallers. Other calls could need one more thread, and the Go
// runtime aborts if it can't create one.
func TestWhoWaitsForADiskTakesATurn(t *testing.T) {
	linked := goList(t, []string{"CGO_ENABLED=0"}, "-deps", "./cmd/hinit")
	used := make(map[string]bool)
	eachGoFile(t, func(path string, f *ast.File) {
		if strings.HasSuffix(path, "_test.go") || !slices.Contains(linked, "hinit/"+filepath.Dir(path)) {
			return
		}
		if _, is := nearestEntry(path, uncheckedDirs); is {
			return
		}
		for _, decl := range f.Decls {
			name := "var"
			if fn, is := decl.(*ast.FuncDecl); is {
				name = fn.Name.Name
			}
			for _, call := range unlimitedCalls(f, decl) {
				row := path + " " + name
				if unlimitedCallers[row] == "" {
					row = path
				}
				if used[row] = true; unlimitedCallers[row] == "" {
					t.Errorf("%s: %s calls %s outside a turn: let it be called by blocking.Do, or through a directory whose fsutil.Actor takes turns", path, name, call)
				}
			}
		}
	})
	for _, row := range slices.Sorted(maps.Keys(unlimitedCallers)) {
		if !used[row] {
			t.Errorf("the exception for %q is not needed any more", row)
		}
	}
	for dir := range uncheckedDirs {
		if !slices.Contains(linked, "hinit/"+dir) {
			t.Errorf("PID 1's program does not link %s: take its row out", dir)
		}
	}
}

// unlimitedCalls lists the calls of functions in fileCalls that are outside a function literal for one
// of limitingFunctions.
func unlimitedCalls(f *ast.File, decl ast.Decl) (calls []string) {
	names := make(map[string]string)
	for _, spec := range f.Imports {
		pkg := importPath(spec)
		name := pkg[strings.LastIndex(pkg, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = pkg
	}
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			name := functionName(n.Fun)
			if slices.Contains(limitingFunctions, name) {
				return false
			}
			if actor, opens := actorArgument[name]; opens && !isLimitedActor(n.Args[actor]) {
				calls = append(calls, name)
			}
		case *ast.SelectorExpr: // The name alone counts, because the function may also be passed as a value.
			if pkg, is := n.X.(*ast.Ident); is && slices.Contains(fileCalls[names[pkg.Name]], n.Sel.Name) {
				calls = append(calls, functionName(n))
			}
		}
		return true
	})
	return calls
}

// functionName returns the name of a function as the source writes it, with at most two words: "f" or "x.f".
func functionName(fun ast.Expr) string {
	switch fun := fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		switch x := fun.X.(type) {
		case *ast.Ident:
			return x.Name + "." + fun.Sel.Name
		case *ast.SelectorExpr:
			return x.Sel.Name + "." + fun.Sel.Name
		}
	}
	return ""
}
