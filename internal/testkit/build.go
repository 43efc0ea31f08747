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

	"golang.org/x/sys/unix"
)

// BuiltVar names a directory that the test binaries of one run share: what one has built there the others link to. Whoever sets it sees
// to it that the sources stay as they are until then, as test/summary does for `make test`.
const BuiltVar = "HINIT_TEST_BUILT"

const (
	stripped = "-ldflags=-s -w"
	entry    = "-ldflags=-s -w -E hinit_entry" // it begins in internal/entry
)

// programs are the programs that tests need: the name of the file, and the arguments of go build as in the Makefile.
var programs = map[string][]string{
	"hinit":                {entry, "hinit/cmd/hinit"},
	"faulty/hinit":         {entry, "-tags=faults", "hinit/cmd/hinit"}, // it can be made to panic
	"hinit-shim":           {stripped, "hinit/cmd/hinit-shim"},
	"hinit-actions":        {stripped, "hinit/cmd/hinit-actions"},
	"hinit-import":         {stripped, "hinit/cmd/hinit-import"},
	"hinit-isolate":        {"-ldflags=-s -w -E hinit_isolate", "hinit/cmd/hinit-isolate"},
	"hinit-profile":        {stripped, "hinit/cmd/hinit-profile"},
	"hinit-kanban":         {stripped, "hinit/cmd/hinit-kanban"},
	"hinit-web":            {stripped, "hinit/cmd/hinit-web"},
	"hinit-tools":          {entry, "hinit/cmd/hinit-tools"},
	"faulty/hinit-tools":   {entry, "-tags=faults", "hinit/cmd/hinit-tools"}, // hinit profile writes on the volume too
	"hinit-top":            {stripped, "hinit/cmd/hinit-top"},
	"hinit-sandbox":        {stripped, "hinit/cmd/hinit-sandbox"},
	"hinit-sandbox-helper": {stripped, "hinit/cmd/hinit-sandbox-helper"},
	"example-agent":        {stripped, "hinit/examples/agent"},
}

// shared is that directory, "" for none. Processes of tests must not find the variable: hinit warns of an unknown one.
var shared = func() string {
	dir := os.Getenv(BuiltVar)
	_ = os.Unsetenv(BuiltVar)
	return dir
}()

// Build puts static programs of this repository into a directory, under their names. Where the run shares none, they are made in
// dist/tests of the working tree, where later runs find them: go build links only what has changed.
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
		if path.Base(name) == "hinit" { // its commands are with it
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

// keptDir is where programs stay from run to run.
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

// place makes a program in a directory that others use too, and puts a copy at to. It keeps an existing program if finished says
// so. Others that want it meanwhile wait.
func place(to, from, name string, finished bool) error {
	made := filepath.Join(from, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.MkdirAll(filepath.Dir(made), 0o755)); err != nil {
		return err
	}
	lock, err := os.OpenFile(made+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close() // it ends the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("cannot lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(made); err != nil || !finished {
		if err := errors.Join(build(made, name), os.Chmod(made, 0o755)); err != nil { // whatever the umask was when it was made
			return err
		}
	}
	if finished && os.Link(made, to) == nil { // what will change is copied
		return nil
	}
	// No process may have a program open for writing when it is executed, so another one copies it.
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
	args := append([]string{"build", "-trimpath", "-buildvcs=false"}, words[:at]...)
	cmd := exec.CommandContext(context.Background(), "go", append(args, "-o", to, words[at])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build what is under test: %w\n%s", err, out)
	}
	return nil
}
