package s6_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/internal/proc"
	"hinit/internal/s6/applet"
	"hinit/internal/testkit"
)

// ours is the directory of hinit's tools. theirs is the directory of s6's tools, or "" if s6 isn't
// installed.
var ours, theirs string

func TestMain(m *testing.M) {
	flag.Parse()
	testkit.IsolateProcess()
	proc.RestoreIgnoredSignals() // A shell can't trap a signal that was ignored at its start, as SIGHUP is under nohup.
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("/var/tmp", "hinit-s6-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) // an error does not matter: only a temporary directory is left
	if testing.Short() {
		return m.Run() // With -short, the tests only run hinit's tools and compare nothing.
	}
	if err := errors.Join(os.Chmod(dir, 0o755), installPrograms(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if path, err := exec.LookPath("s6-svscan"); err == nil {
		theirs = filepath.Dir(path)
	}
	return m.Run()
}

// installPrograms installs hinit and its links into a directory.
func installPrograms(dir string) error {
	ours = dir
	if from := os.Getenv("HINIT_TEST_BIN"); from != "" {
		if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
			return err
		}
	} else if err := testkit.Build(dir, "hinit"); err != nil {
		return err
	}
	for _, name := range applet.Names() {
		if err := os.Symlink("hinit-tools", filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// requireS6 skips a test if s6 isn't installed.
func requireS6(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	if theirs == "" {
		testkit.SkipOrFail(t, "s6 is not installed; test/install-tools does that")
	}
}

// outcome is the result of a script.
type outcome struct {
	output string // Standard output and error, in the order of the writes.
	code   int
	files  string // Mode, path and content of all remaining files.
}

// helpers are shell functions for the scripts. idle waits until a process has nothing left to do;
// it looks repeatedly, because one thread may wake another.
const helpers = `umask 022
idle() {
	was=none
	while now=$(grep -hsE '^State|ctxt_switches' /proc/$1/task/*/status); [ "$now" != "$was" ] || printf %s "$now" | grep -q '^State:.[RDT]'; do
		was=$now
		sleep 0.02
	done
}
`

// runScript runs a shell script in its own directory, with a directory of tools first in PATH.
func runScript(t *testing.T, tools, text string) outcome {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", helpers+text)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + tools + ":/usr/bin:/bin", "HOME=/root", "TZ=America/New_York", "LC_ALL=C"}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s does not end; it printed %s", text, output.String())
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{output.String(), cmd.ProcessState.ExitCode(), listTree(t, dir)}
}

// listTree lists the files below a directory.
func listTree(t *testing.T, root string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		line := fmt.Sprintf("%v %s", info.Mode(), name)
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", content)
			if len(content) > 4000 {
				line = fmt.Sprintf("%v %s: %d bytes, %d lines", info.Mode(), name, len(content), bytes.Count(content, []byte("\n")))
			}
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(a, b) })
	return strings.Join(lines, "\n")
}

// variableParts are texts that differ from run to run, with their replacements.
var variableParts = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`@4[0-9a-f]{23}`), "@LABEL"},
	{regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9}`), "TIME"},
	{regexp.MustCompile(`\(pid \d+\)`), "(pid N)"},
	{regexp.MustCompile(`(?m)^([a-z0-9-]+): usage: .*`), "$1: usage"},
}

func same(o outcome, known ...difference) string {
	text := fmt.Sprintf("exit code %d\n%s\n%s\n", o.code, o.output, o.files)
	for _, v := range variableParts {
		text = v.pattern.ReplaceAllString(text, v.instead)
	}
	for _, k := range known {
		text = strings.ReplaceAll(text, k.theirs, k.ours)
	}
	return text
}

// difference is an intended difference: a text of s6, and hinit's text in its place.
type difference struct{ theirs, ours, why string }

// compare runs a script with both sets of tools, and reports differences.
func compare(t *testing.T, text string, known ...difference) {
	t.Helper()
	expected, got := same(runScript(t, theirs, text), known...), same(runScript(t, ours, text))
	if got != expected {
		t.Errorf("%s\n--- hinit:\n%s--- s6:\n%s", text, got, expected)
	}
}
