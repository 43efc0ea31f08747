package applet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// runLogTool runs s6-log with the input from write. It returns the output and the exit code.
func runLogTool(t *testing.T, script string, write func(w *os.File)) (out string, code int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		defer w.Close()
		write(w)
	}()
	var stdout, stderr bytes.Buffer
	words, dir, named := strings.Cut(script, "/")
	args := strings.Fields(words)
	if named {
		args = append(args, "/"+dir)
	}
	code = tools["s6-log"].main(&Invocation{Name: "s6-log", Args: args, In: r, Out: &stdout, Err: &stderr})
	if stderr.Len() > 0 {
		t.Logf("s6-log: %s", stderr.String())
	}
	return stdout.String(), code
}

func TestEveryLineIsKeptOnceAndInOrder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	random := rand.New(rand.NewPCG(1, 2))
	var want strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&want, "line %d %s\n", i, strings.Repeat("x", random.IntN(300)))
	}
	want.WriteString("a last line without an end")
	out, code := runLogTool(t, "1 n10000 s4096 l500 "+dir, func(w *os.File) {
		for rest := want.String(); rest != ""; {
			n := min(len(rest), 1+random.IntN(5000))
			_, _ = w.WriteString(rest[:n])
			rest = rest[n:]
		}
	})
	if code != 0 || out != want.String()+"\n" {
		t.Errorf("exit code %d, %d bytes on stdout, want %d", code, len(out), want.Len()+1)
	}
	archives, err := filepath.Glob(dir + "/@*.s")
	if err != nil || len(archives) < 100 {
		t.Fatalf("%d archives, %v", len(archives), err)
	}
	var got strings.Builder
	for _, name := range append(archives, dir+"/current") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 4096+320 || text[len(text)-1] != '\n' {
			t.Errorf("%s has %d bytes and ends with %q", name, len(text), text[len(text)-1])
		}
		info, err := os.Stat(name)
		if err != nil || info.Mode() != archivedMode {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
		got.Write(text)
	}
	if got.String() != want.String()+"\n" {
		t.Errorf("the files hold %d bytes, want %d", got.Len(), want.Len()+1)
	}
}

func TestNoLinkIsFollowedInALogDirectory(t *testing.T) {
	for _, name := range []string{"current", "lock"} {
		dir := t.TempDir()
		victim := filepath.Join(t.TempDir(), "victim")
		if err := os.WriteFile(victim, []byte("precious\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(victim, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, code := runLogTool(t, dir, func(w *os.File) { _, _ = w.WriteString("x\n") }); code != exitSystemError {
			t.Errorf("%s: exit code %d", name, code)
		}
		if text, err := os.ReadFile(victim); err != nil || string(text) != "precious\n" {
			t.Errorf("%s: the victim holds %q, %v", name, text, err)
		}
	}
}

func TestAFullDiskHoldsTheWriterUpAndLosesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 60<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	full := make(chan struct{})
	var want strings.Builder
	for i := range 400 {
		fmt.Fprintf(&want, "line %d of a log on a full disk\n", i)
	}
	_, code := runLogTool(t, "r50 "+log, func(w *os.File) {
		defer close(full)
		_, _ = w.WriteString(want.String())
		for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if info, err := os.Stat(log + "/current"); err == nil && info.Size() > 0 {
				break
			}
		}
		_ = os.Remove(ballast)
		for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if info, err := os.Stat(log + "/current"); err == nil && int(info.Size()) == want.Len() {
				break
			}
		}
	})
	<-full
	text, err := os.ReadFile(log + "/current")
	if err != nil || code != 0 || string(text) != want.String() {
		t.Errorf("exit code %d, %d bytes, want %d, %v", code, len(text), want.Len(), err)
	}
}

func FuzzScriptsNeverHurt(f *testing.F) {
	f.Add("1 n10 s1000000 T /logs")
	f.Add("-a +b f t 2 l5 s9 S8 r7 ./d")
	f.Fuzz(func(t *testing.T, script string) {
		steps, problem := parseScript(strings.Split(script, " "))
		if (problem == "") != (len(steps) > 0) {
			t.Fatalf("%q: %d steps, %q", script, len(steps), problem)
		}
		for _, s := range steps {
			if s.action == '/' && (s.dir.tolerance > s.dir.rotateSize || s.dir.rotateSize < minSize) {
				t.Fatalf("%q: %+v", script, s.dir)
			}
		}
	})
}

// blockedWriter is an output that blocks until its release.
type blockedWriter struct{ release chan struct{} }

func (s blockedWriter) Write(b []byte) (int, error) {
	<-s.release
	return len(b), nil
}

func TestALineIsInTheFileAlthoughNobodyReadsStdout(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out := blockedWriter{make(chan struct{})}
	ended := make(chan int, 1)
	go func() {
		ended <- tools["s6-log"].main(&Invocation{Name: "s6-log", Args: []string{"1", dir}, In: r, Out: out, Err: io.Discard})
	}()
	if _, err := w.WriteString("a line\n"); err != nil {
		t.Fatal(err)
	}
	text := ""
	for end := time.Now().Add(40 * time.Second); text == "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		b, _ := os.ReadFile(dir + "/current")
		text = string(b)
	}
	if text != "a line\n" {
		t.Errorf("the file holds %q", text)
	}
	close(out.release)
	_ = w.Close()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestAFIFOInALogDirectoryHoldsNothingUp(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "state"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, code := runLogTool(t, dir, func(w *os.File) { _, _ = w.WriteString("x\n") }); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if text, err := os.ReadFile(dir + "/current"); err != nil || string(text) != "x\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestALineThatIsMuchTooLongIsSplitWithoutLosingAByte(t *testing.T) {
	long := strings.Repeat("0123456789", 30000)
	out, code := runLogTool(t, "1", func(w *os.File) { _, _ = w.WriteString(long + "\nnext\n") })
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	last := len(lines) - 1
	if code != 0 || strings.Join(lines[:last], "") != long || lines[last] != "next" || last != (len(long)+lineLimit-1)/lineLimit {
		t.Errorf("exit code %d, %d lines, %d bytes", code, len(lines), len(out))
	}
}

func TestRootWritesNoLogWhereALinkOfTheAgentsLeads(t *testing.T) {
	testkit.NeedRoot(t)
	agents, roots := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(roots, "current"), "precious\n")
	if err := errors.Join(os.Symlink(roots, agents+"/logs"), os.Lchown(agents+"/logs", 10000, 10000), os.Chown(agents, 10000, 10000)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{agents + "/logs", agents + "/logs/new"} {
		if _, code := runLogTool(t, dir, func(w *os.File) { _, _ = w.WriteString("x\n") }); code != exitSystemError {
			t.Errorf("%s: exit code %d", dir, code)
		}
	}
	entries, err := os.ReadDir(roots)
	if text, readErr := os.ReadFile(filepath.Join(roots, "current")); err != nil || readErr != nil || len(entries) != 1 || string(text) != "precious\n" {
		t.Errorf("root's directory holds %v, and its current %q: %v, %v", entries, text, err, readErr)
	}

	// A link that root made must be followed into the agent's directory.
	if err := os.Symlink(agents, filepath.Join(roots, "to")); err != nil {
		t.Fatal(err)
	}
	if _, code := runLogTool(t, filepath.Join(roots, "to"), func(w *os.File) { _, _ = w.WriteString("x\n") }); code != exitDone {
		t.Errorf("through root's own link: exit code %d", code)
	}
}

func TestRootWritesNoLogIntoAFileThatItHasElsewhere(t *testing.T) {
	testkit.NeedRoot(t)
	base := t.TempDir()
	dir, victim := filepath.Join(base, "dir"), filepath.Join(base, "victim")
	writeFile(t, victim, "precious\n")
	if err := errors.Join(os.Chmod(victim, 0o700), os.Mkdir(dir, 0o755), os.Link(victim, dir+"/current"), os.Chown(dir, 10000, 10000)); err != nil {
		t.Fatal(err)
	}
	if _, code := runLogTool(t, dir, func(w *os.File) { _, _ = w.WriteString("x\n") }); code != exitSystemError {
		t.Errorf("exit code %d", code)
	}
	info, err := os.Stat(victim)
	if text, readErr := os.ReadFile(victim); err != nil || readErr != nil || string(text) != "precious\n" || info.Mode().Perm() != 0o700 {
		t.Errorf("root's file holds %q with mode %v: %v, %v", text, info.Mode(), err, readErr)
	}
}
