package testkit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// BuiltVar is the environment variable that names a directory which the test binaries of one run share. A test binary links to
// the programs that another one has already built there. The program that sets the variable must ensure that the sources don't
// change during the run, as test/summary does for `make test`.
const BuiltVar = "HINIT_TEST_BUILT"

// Serious begins the message of a test that has seen a broken promise, and so must not be run again. test/summary looks for the
// word.
const Serious = "serious: "

const (
	stripped = "-ldflags=-s -w"
	entry    = "-ldflags=-s -w -E hinit_entry" // with the entry point in internal/entry
)

// programs has the programs that tests need: the name of the file, and the arguments of go build, which are the same as in the
// Makefile.
var programs = map[string][]string{
	"hinit":                {entry, "hinit/cmd/hinit"},
	"faulty/hinit":         {entry, "-tags=faults", "hinit/cmd/hinit"}, // tests can make this program panic
	"hinit-shim":           {stripped, "hinit/cmd/hinit-shim"},
	"hinit-actions":        {stripped, "hinit/cmd/hinit-actions"},
	"hinit-import":         {stripped, "hinit/cmd/hinit-import"},
	"hinit-isolate":        {"-ldflags=-s -w -E hinit_isolate", "hinit/cmd/hinit-isolate"},
	"hinit-profile":        {stripped, "hinit/cmd/hinit-profile"},
	"hinit-kanban":         {stripped, "hinit/cmd/hinit-kanban"},
	"hinit-web":            {stripped, "hinit/cmd/hinit-web"},
	"hinit-tools":          {entry, "hinit/cmd/hinit-tools"},
	"faulty/hinit-tools":   {entry, "-tags=faults", "hinit/cmd/hinit-tools"}, // the command hinit profile writes to the volume
	"hinit-top":            {stripped, "hinit/cmd/hinit-top"},
	"hinit-sandbox":        {stripped, "hinit/cmd/hinit-sandbox"},
	"hinit-sandbox-helper": {stripped, "hinit/cmd/hinit-sandbox-helper"},
	"example-agent":        {stripped, "hinit/examples/agent"},
}

// shared is the directory in [BuiltVar], or "". The variable is then removed, because a hinit that tests start would warn about
// an unknown variable.
var shared = func() string {
	dir := os.Getenv(BuiltVar)
	_ = os.Unsetenv(BuiltVar)
	return dir
}()

// Build puts static programs of this repository into a directory, under their names. Without a shared directory, it builds them
// in dist/tests of the working tree, where later runs find them. go build then links a program only if it has changed.
func Build(dir string, names ...string) error {
	from, finished := shared, true
	if from == "" {
		kept, err := keptDir()
		if err != nil {
			return err
		}
		from, finished = kept, false
	}
	for _, name := range names {
		if path.Base(name) == "hinit" { // hinit needs hinit-tools beside it for its commands
			if tools := name + "-tools"; !slices.Contains(names, tools) {
				names = append(names, tools)
			}
		}
	}
	for _, name := range names {
		if err := place(filepath.Join(dir, name), from, name, finished); err != nil {
			return err
		}
	}
	return nil
}

// keptDir returns the directory in which programs stay for later runs.
func keptDir() (string, error) {
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

// place builds a program in the directory given as from, which other test binaries use too, and puts a copy at the path given as
// to. If finished is set, it does not rebuild an existing program. During the build, other test binaries that want the same
// program wait.
func place(to, from, name string, finished bool) error {
	made := filepath.Join(from, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.MkdirAll(filepath.Dir(made), 0o755)); err != nil {
		return err
	}
	lock, err := lockOf(made)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := os.Stat(made); err != nil || !finished {
		if err := errors.Join(build(made, name), os.Chmod(made, 0o755)); err != nil { // the umask may have removed bits of the mode
			return err
		}
	}
	if finished && os.Link(made, to) == nil { // a link is enough for a program that is not rebuilt; otherwise make a copy
		return nil
	}
	// A file can't be executed while a process has it open for writing. So another process, cp, makes the copy: a child that this
	// process forks can't inherit the descriptor.
	if out, err := exec.CommandContext(context.Background(), "cp", made, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy %s: %w\n%s", made, err, out)
	}
	return nil
}

func build(to, name string) error {
	words, known := programs[name]
	if !known {
		return fmt.Errorf("cannot build %s: tests drive no program of this name", name)
	}
	at := len(words) - 1
	return goBuild(words[:at], to, words[at])
}

// goBuild builds the programs in packages with these flags of go build.
func goBuild(flags []string, to string, packages ...string) error {
	cmd := exec.CommandContext(context.Background(), "go", slices.Concat([]string{"build", "-trimpath", "-buildvcs=false"}, flags, []string{"-o", to}, packages)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build what is under test: %w\n%s", err, out)
	}
	return nil
}

// Claim makes test binaries that share a directory wait for its programs, and returns the function that builds all of them. One go
// build for each set of flags uses all processors, and compiles no package twice.
func Claim(dir string) (build func() error) {
	var locks []*os.File
	groups := make(map[string][]string) // names of programs, by their flags
	for name, words := range programs {
		flags := strings.Join(words[:len(words)-1], "\n")
		groups[flags] = append(groups[flags], name)
		if os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755) != nil {
			continue // place says why
		}
		if lock, err := lockOf(filepath.Join(dir, name)); err == nil { // likewise
			locks = append(locks, lock)
		}
	}
	return func() error {
		defer func() {
			for _, lock := range locks {
				_ = lock.Close()
			}
		}()
		for flags, names := range groups {
			to, err := os.MkdirTemp(dir, "")
			if err != nil {
				return err
			}
			var packages []string
			for _, name := range names {
				packages = append(packages, programs[name][len(programs[name])-1])
			}
			if err := goBuild(strings.Split(flags, "\n"), to+"/", packages...); err != nil {
				return err
			}
			for i, name := range names {
				from := filepath.Join(to, path.Base(packages[i]))
				if err := errors.Join(os.Chmod(from, 0o755), os.Rename(from, filepath.Join(dir, name))); err != nil { // the umask may have removed bits of the mode
					return err
				}
			}
		}
		return nil
	}
}

// lockOf locks a program that is built at a path. Closing the file releases the lock.
func lockOf(made string) (*os.File, error) {
	lock, err := os.OpenFile(made+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", lock.Name(), err), lock.Close())
	}
	return lock, nil
}
