package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// BuiltVar names a directory that the test binaries of one run share: what one has built there the others link to. Whoever sets it sees
// to it that the sources stay as they are until then, as test/summary does for `make test`.
const BuiltVar = "HINIT_TEST_BUILT"

const (
	stripped = "-ldflags=-s -w"
	entry    = "-ldflags=-s -w -E hinit_entry" // it begins in internal/entry
)

// programs are those that tests drive, with the words of go build that make them as they are shipped (Makefile), by their name in a
// directory of them.
var programs = map[string][]string{
	"hinit":                {entry, "hinit/cmd/hinit"},
	"faulty/hinit":         {entry, "-tags=faults", "hinit/cmd/hinit"}, // it can be made to panic
	"hinit-shim":           {stripped, "hinit/cmd/hinit-shim"},
	"hinit-actions":        {stripped, "hinit/cmd/hinit-actions"},
	"hinit-kanban":         {stripped, "hinit/cmd/hinit-kanban"},
	"hinit-web":            {stripped, "hinit/cmd/hinit-web"},
	"hinit-top":            {stripped, "hinit/cmd/hinit-top"},
	"hinit-sandbox":        {stripped, "hinit/cmd/hinit-sandbox"},
	"hinit-sandbox-helper": {stripped, "hinit/cmd/hinit-sandbox-helper"},
	"example-agent":        {stripped, "hinit/examples/agent"},
}

// shared is that directory, "" for none. What tests start must not find the variable: hinit warns of one that it doesn't know.
var shared = func() string {
	dir := os.Getenv(BuiltVar)
	_ = os.Unsetenv(BuiltVar)
	return dir
}()

// Build puts static programs of this repository into a directory, under their names.
func Build(dir string, names ...string) error {
	for _, name := range names {
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if shared == "" {
			if err := build(to, name); err != nil {
				return err
			}
			continue
		}
		from := filepath.Join(shared, name)
		if err := buildOnce(from, name); err != nil {
			return err
		}
		if os.Link(from, to) == nil { // no process may have a program open for writing when it is executed
			continue
		}
		if err := exec.CommandContext(context.Background(), "cp", from, to).Run(); err != nil { // another file system
			return fmt.Errorf("cannot copy %s: %w", from, err)
		}
	}
	return nil
}

// buildOnce builds a program unless it is there. Others that want it meanwhile wait.
func buildOnce(to, name string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(to+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close() // it ends the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("cannot lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	if err := build(to+".new", name); err != nil {
		return err
	}
	return os.Rename(to+".new", to) // whole or not at all
}

func build(to, name string) error {
	words, known := programs[name]
	if !known {
		return fmt.Errorf("cannot build %s: tests drive no program of this name", name)
	}
	at := len(words) - 1
	args := append([]string{"build", "-trimpath"}, words[:at]...)
	cmd := exec.CommandContext(context.Background(), "go", append(args, "-o", to, words[at])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build what is under test: %w\n%s", err, out)
	}
	return nil
}
