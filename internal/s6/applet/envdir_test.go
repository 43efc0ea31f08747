package applet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

func readTestEnvDir(t *testing.T, dir string, rules envDirRules) ([]string, error) {
	t.Helper()
	type answer struct {
		env []string
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		env, err := readEnvDir([]string{"OLD=1"}, dir, rules)
		answers <- answer{env, err}
	}()
	a := <-answers
	return a.env, a.err
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestAVariableIsNotReadFromWhatNeverEnds(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a FIFO":           func(path string) error { return unix.Mkfifo(path, 0o666) },
		"a device":         func(path string) error { return os.Symlink("/dev/zero", path) },
		"a huge file":      func(path string) error { writeFile(t, path, ""); return os.Truncate(path, 1<<40) },
		"too long a value": func(path string) error { writeFile(t, path, strings.Repeat("x", maxEnvValue+1)); return nil },
	} {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "A"), "a\n")
		if err := make(filepath.Join(dir, "B")); err != nil {
			t.Fatal(err)
		}
		env, err := readTestEnvDir(t, dir, envDirRules{nullReplacement: '\n'})
		if err == nil || !slices.Equal(env, []string{"OLD=1"}) {
			t.Errorf("%s: %.60q, %v", name, env, err)
		}
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "A"), "a\n"+strings.Repeat("x", 2*maxEnvValue))
	if err := os.Symlink("/dev/null", filepath.Join(dir, "OLD")); err != nil {
		t.Fatal(err)
	}
	if env, err := readTestEnvDir(t, dir, envDirRules{nullReplacement: '\n'}); err != nil || !slices.Equal(env, []string{"A=a"}) {
		t.Errorf("%.60q, %v", env, err)
	}
}

func TestRootReadsNoVariableThroughALinkThatAnotherCouldHaveMade(t *testing.T) {
	testkit.NeedRoot(t)
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	writeFile(t, secret, "for root only\n")
	if err := os.Symlink(secret, filepath.Join(dir, "A")); err != nil {
		t.Fatal(err)
	}
	if env, err := readTestEnvDir(t, dir, envDirRules{}); err != nil || !slices.Contains(env, "A=for root only") {
		t.Errorf("in a directory of root's own: %q, %v", env, err)
	}
	for name, spoil := range map[string]func() error{
		"another's":           func() error { return os.Chown(dir, 10000, 10000) },
		"writable for others": func() error { return os.Chmod(dir, 0o777) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if env, err := readTestEnvDir(t, dir, envDirRules{}); err == nil {
			t.Errorf("in a directory that is %s: %q", name, env)
		}
		if err := os.Chown(dir, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMoreVariablesThanAProgramCanGetAreRefused(t *testing.T) {
	dir := t.TempDir()
	for i := range maxEnvTotal/maxEnvValue + 1 {
		writeFile(t, filepath.Join(dir, "V"+strings.Repeat("x", i)), strings.Repeat("x", maxEnvValue))
	}
	if _, err := readTestEnvDir(t, dir, envDirRules{wholeFile: true}); err == nil {
		t.Error("they were read")
	}
}

func TestRootGetsNothingOfTheAgentsFromTheContainersEnvironment(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	own, loose, his := dir+"/own", dir+"/loose", dir+"/his"
	for _, d := range []string{own, loose, his} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(loose, 0o777), os.Chown(his, 10000, 10000)); err != nil {
		t.Fatal(err)
	}
	got := safeRootEnv([]string{
		"HERMES_HOME=/data", "PATH=" + his + "/bin:" + own + ":" + loose + ":relative::/data/.local/bin:" + dir + "/none", "LD_PRELOAD=/data/x.so",
		"NODE_OPTIONS=--require=/data/x.js", "PLAIN=/database",
	})
	want := []string{"HERMES_HOME=/data", "PATH=" + own + ":/data/.local/bin:" + dir + "/none", "PLAIN=/database"}
	if _, err := os.Stat("/data"); err == nil {
		t.Skip("there is a /data here")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheAgentGetsNoSecretOfRootsByALinkInPlaceOfTheDirectoryOfVariables(t *testing.T) {
	testkit.NeedRoot(t)
	agents, roots := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(roots, "SECRET"), "for root only\n")
	if err := os.Mkdir(agents+"/env", 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, agents+"/env/A", "a\n")
	if err := errors.Join(os.Symlink(roots, agents+"/link"), os.Link(roots+"/SECRET", agents+"/env/B"), os.Chown(agents, 10000, 10000), os.Chown(agents+"/env", 10000, 10000)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"link", "link/", "env"} { // the last of these files is a hard link to root's file
		if env, err := readTestEnvDir(t, agents+"/"+dir, envDirRules{}); err == nil {
			t.Errorf("%s: %q", dir, env)
		}
	}
	if err := os.Symlink(agents+"/link", roots+"/far"); err != nil {
		t.Fatal(err)
	}
	if env, err := readTestEnvDir(t, roots+"/far", envDirRules{}); err == nil {
		t.Errorf("a link to a link: %q", env)
	}
	if err := errors.Join(os.Remove(agents+"/env/B"), os.Symlink(agents+"/env", roots+"/near")); err != nil {
		t.Fatal(err)
	}
	if env, err := readTestEnvDir(t, roots+"/near", envDirRules{}); err != nil || !slices.Contains(env, "A=a") {
		t.Errorf("a link of root's: %q, %v", env, err)
	}
}
