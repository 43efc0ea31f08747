package testkit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// BuiltVar is the environment variable that names a directory shared by the test binaries of one run. A test binary uses the
// programs that another one has already built there. The program that sets the variable must make sure that the sources don't
// change during the run, as test/summary does for `make test`.
const BuiltVar = "HINIT_TEST_BUILT"

// SeriousPrefix is the beginning of the message of a test that has found a broken promise. test/summary looks for it, and does
// not run such a test again.
const SeriousPrefix = "serious: "

// buildFlags has the flags of go build for the programs, as in the Makefile. Programs with the same flags are built by one call.
var buildFlags = map[string][]string{
	"entry":       {"-ldflags=-s -w -E hinit_entry"},                 // for programs whose entry point is in internal/entry
	"tools":       {"-ldflags=-s -w -E hinit_tools"},                 // for programs whose entry point is in internal/entry/ask
	"faulty":      {"-ldflags=-s -w -E hinit_entry", "-tags=faults"}, // for programs that tests can make panic
	"faultytools": {"-ldflags=-s -w -E hinit_tools", "-tags=faults"},
	"isolate":     {"-ldflags=-s -w -E hinit_isolate"},
	"stripped":    {"-ldflags=-s -w"},
}

// program is a program that tests need. build is a key of builds; pkg is the package of the program.
type program struct{ flagsName, pkg string }

// programs has the programs for tests, by the names of their files.
var programs = map[string]program{
	"hinit":         {"entry", "hinit/cmd/hinit"},
	"faulty/hinit":  {"faulty", "hinit/cmd/hinit"},
	"hinit-shim":    {"stripped", "hinit/cmd/hinit-shim"},
	"hinit-actions": {"stripped", "hinit/cmd/hinit-actions"},
	"hinit-import":  {"stripped", "hinit/cmd/hinit-import"},
	"hinit-isolate": {"isolate", "hinit/cmd/hinit-isolate"},
	"hinit-profile": {"stripped", "hinit/cmd/hinit-profile"},
	"hinit-kanban":  {"stripped", "hinit/cmd/hinit-kanban"},
	"hinit-web":     {"stripped", "hinit/cmd/hinit-web"},
	"hinit-tools":   {"tools", "hinit/cmd/hinit-tools"},
	// The program with which hinit profile writes to the volume.
	"faulty/hinit-tools":   {"faultytools", "hinit/cmd/hinit-tools"},
	"hinit-top":            {"stripped", "hinit/cmd/hinit-top"},
	"hinit-sandbox":        {"stripped", "hinit/cmd/hinit-sandbox"},
	"hinit-sandbox-helper": {"stripped", "hinit/cmd/hinit-sandbox-helper"},
	"example-agent":        {"stripped", "hinit/examples/agent"},
	"testproc":             {"stripped", "hinit/test/testproc"},
}

// sharedDir is the directory in [BuiltVar], or "". The function also removes the variable, because a hinit in a test would warn
// about an unknown variable.
var sharedDir = func() string {
	dir := os.Getenv(BuiltVar)
	_ = os.Unsetenv(BuiltVar)
	return dir
}()

// Build puts static programs of this repository into a directory, under their names. Without a shared directory, it builds them
// in dist/tests of the working tree, where later runs find them. go build then builds only the changed programs.
func Build(dir string, names ...string) error {
	for _, name := range names {
		if _, known := programs[name]; !known {
			return fmt.Errorf("cannot build %s: tests drive no program of this name", name)
		}
		if path.Base(name) == "hinit" { // also build hinit-tools, which hinit executes for its commands
			if tools := name + "-tools"; !slices.Contains(names, tools) {
				names = append(names, tools)
			}
		}
	}
	if sharedDir != "" {
		for _, name := range names {
			if err := linkShared(dir, name); err != nil {
				return err
			}
		}
		return nil
	}
	kept, err := cacheDir()
	if err != nil {
		return err
	}
	for build, group := range groupByBuild(names) {
		if err := buildInCache(dir, filepath.Join(kept, build), build, group); err != nil {
			return err
		}
	}
	return nil
}

// groupByBuild groups programs by their flags of go build. The result's keys are keys of builds.
func groupByBuild(names []string) map[string][]string {
	groups := make(map[string][]string)
	for _, name := range names {
		groups[programs[name].flagsName] = append(groups[programs[name].flagsName], name)
	}
	return groups
}

// cacheDir returns the directory in which programs stay for later runs.
func cacheDir() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for root := here; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(root, "dist", "tests"), nil
		}
		if root == filepath.Dir(root) {
			return "", fmt.Errorf("cannot build what is under test: no module is above %s", here)
		}
	}
}

// linkShared links a program of the shared directory into dir, and builds it first if necessary. During the build, other test
// binaries that need the program wait.
func linkShared(dir, name string) error {
	to := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	made, err := SharedProgram(name)
	if err != nil || os.Link(made, to) == nil {
		return err
	}
	return copyProgram(made, to)
}

// SharedProgram returns the path of a program in the shared directory, or "" without such a directory. It builds the program
// first if no other test binary has built it.
func SharedProgram(name string) (made string, err error) {
	if sharedDir == "" {
		return "", nil
	}
	made = filepath.Join(sharedDir, name)
	if err := os.MkdirAll(filepath.Dir(made), 0o755); err != nil {
		return "", err
	}
	lock, err := lockProgram(made)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(made); err == nil {
		return made, nil
	}
	p := programs[name]
	// Add mode bits that the umask may have removed.
	return made, errors.Join(goBuild(p.flagsName, made, p.pkg), os.Chmod(made, 0o755))
}

// buildInCache builds the named programs, which have the same flags, in the directory kept, and puts copies into dir. During the
// build, other test binaries that need programs with these flags wait.
func buildInCache(dir, kept, build string, names []string) error {
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return err
	}
	lock, err := lockProgram(kept)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := goBuild(build, kept+"/", packagesOf(names)...); err != nil {
		return err
	}
	for _, name := range names {
		made, to := filepath.Join(kept, path.Base(programs[name].pkg)), filepath.Join(dir, name)
		// Add mode bits that the umask may have removed.
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Chmod(made, 0o755)); err != nil {
			return err
		}
		if err := copyProgram(made, to); err != nil {
			return err
		}
	}
	return nil
}

func packagesOf(names []string) (packages []string) {
	for _, name := range names {
		packages = append(packages, programs[name].pkg)
	}
	return packages
}

// copyProgram copies a program with the command cp. A file can't be executed while a process has it open for writing. If this
// process made the copy, a child of another test could inherit the open file.
func copyProgram(from, to string) error {
	if out, err := exec.CommandContext(context.Background(), "cp", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy %s: %w\n%s", from, err, out)
	}
	return nil
}

// goBuild builds the programs in packages with the flags that builds has for them.
func goBuild(build, to string, packages ...string) error {
	cmd := exec.CommandContext(context.Background(), "go", slices.Concat([]string{"build", "-trimpath", "-buildvcs=false"}, buildFlags[build], []string{"-o", to}, packages)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build what is under test: %w\n%s", err, out)
	}
	return nil
}

// LockPrograms makes test binaries that share a directory wait for its programs, and returns the function that builds all of
// them. One go build for each set of flags uses all processors, and compiles no package twice.
func LockPrograms(dir string) (build func() error) {
	var locks []*os.File
	for name := range programs {
		if os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755) != nil {
			continue // ignore the error: without the directory, linkShared reports it
		}
		// without the lock, linkShared builds the program itself
		if lock, err := lockProgram(filepath.Join(dir, name)); err == nil {
			locks = append(locks, lock)
		}
	}
	return func() error {
		defer func() {
			for _, lock := range locks {
				_ = lock.Close()
			}
		}()
		for build, names := range groupByBuild(slices.Collect(maps.Keys(programs))) {
			to, err := os.MkdirTemp(dir, "")
			if err != nil {
				return err
			}
			packages := packagesOf(names)
			if err := goBuild(build, to+"/", packages...); err != nil {
				return err
			}
			for i, name := range names {
				from := filepath.Join(to, path.Base(packages[i]))
				// Add mode bits that the umask may have removed.
				if err := errors.Join(os.Chmod(from, 0o755), os.Rename(from, filepath.Join(dir, name))); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// lockProgram locks the program at the path made during its build. Closing the file releases the lock.
func lockProgram(made string) (*os.File, error) {
	lock, err := os.OpenFile(made+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", lock.Name(), err), lock.Close())
	}
	return lock, nil
}
