package script_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"hinit/test/pages"
)

// TestThePageAboutSupervisingAnything checks that the commands of docs/how-to/supervise-anything.md print what the page
// shows. They work without root.
func TestThePageAboutSupervisingAnything(t *testing.T) {
	t.Parallel()
	blocks, err := pages.Read("../../docs/how-to/supervise-anything.md")
	if err != nil {
		t.Fatal(err)
	}
	yaml, err := pages.FirstWith(blocks, "yaml", "services:")
	if err != nil {
		t.Fatal(err)
	}
	start, err := pages.FirstWith(blocks, "sh", "hinit run\n")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(built.root, "page") //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hinit.yaml"), []byte(yaml), 0o644); err != nil {
		t.Fatal(err)
	}
	// An unknown variable would add a warning to the status.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HINIT_") || strings.HasPrefix(v, "HERMES_") })
	env = append(env, "PATH="+built.bin+":"+os.Getenv("PATH"), "HINIT_RUNTIME_DIR="+filepath.Join(dir, "run"), "HINIT_CONFIG=")
	shell := func(command string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir, cmd.Env = dir, env
		return cmd
	}
	run := shell("exec " + strings.TrimSpace(start))
	var output strings.Builder
	run.Stdout, run.Stderr = &output, &output
	run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = run.Process.Kill() }()
	for _, s := range pages.Steps(blocks) {
		var out []byte
		look := func() error {
			var err error
			out, err = shell(s.Command).CombinedOutput()
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				return err
			}
			return pages.Compare(s.Want, strings.ReplaceAll(string(out), dir, "/srv/app"))
		}
		if err := poll(patience, look); err != nil { // Before the page's first command, the services must be up and the log must exist.
			t.Errorf("line %d: %s\n%v; it printed:\n%s", s.Line, s.Command, err, out)
		}
	}
	if err := run.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := run.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, output.String())
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("it has made %v (%v), not run and logs alone", entries, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "logs", "worker")); err == nil {
		t.Error("worker has a log file and has not asked for one")
	}
}
