package tools

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/redact"
	"hinit/internal/testkit"
)

func unpackBundle(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "hinit-bundle/")] = string(text)
	}
}

func TestBundleWithoutAHinitAndWithoutSecrets(t *testing.T) {
	t.Setenv("SOME_TOKEN", "correct-horse-battery")
	t.Setenv("PLAIN_NAME", "staple-and-more")
	term := unconnectedTerminal(t)
	env := term.Env
	term.Env = func(name string) (string, bool) { return env(name) }
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	if code := term.Run([]string{"bundle", "-o", file, "--hide", "PLAIN_NAME"}, allVerbs()); code != cmdline.ExitDone {
		t.Fatalf("exit code %d: %s", code, term.Err)
	}
	files := unpackBundle(t, file)
	for _, name := range []string{"CONTENTS.txt", "version.json", "status.json", "events.ndjson", "doctor.txt", "config.txt", "kernel.txt", "environment.txt", "gateway-states.txt"} {
		if files[name] == "" {
			t.Errorf("the bundle has no %s", name)
		}
		if !strings.Contains(files["CONTENTS.txt"], name) && name != "CONTENTS.txt" {
			t.Errorf("the list of contents lacks %s", name)
		}
	}
	for name, text := range files {
		for _, secret := range []string{"correct-horse-battery", "staple-and-more"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds %q", name, secret)
			}
		}
	}
	if !strings.Contains(files["environment.txt"], "SOME_TOKEN=****") || !strings.Contains(files["status.txt"], "no hinit listens") {
		t.Errorf("environment:\n%s\nstatus:\n%s", files["environment.txt"], files["status.txt"])
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
	if code := term.Run([]string{"bundle", "-o", file}, allVerbs()); code != cmdline.ExitFailed {
		t.Errorf("over an existing file: exit code %d", code)
	}
}

func TestAPartThatHangsDoesNotHoldTheBundle(t *testing.T) {
	release := make(chan struct{})
	b := &bundle{deadline: time.Now().Add(50 * time.Millisecond)}
	files := b.collect([]bundlePart{
		{name: "quick", writeContent: func(w io.Writer) error { _, err := io.WriteString(w, "here\n"); return err }},
		{name: "hangs", writeContent: func(w io.Writer) error {
			_, _ = io.WriteString(w, "begun\n")
			<-release
			return nil
		}},
		{name: "fails", writeContent: func(io.Writer) error { return errors.New("no such luck") }},
	})
	close(release)
	for i, want := range []string{"here\n", "begun\n(hinit bundle did not wait longer for this)\n", "no such luck\n"} {
		if got := string(files[i].content); got != want {
			t.Errorf("%s holds %q, want %q", files[i].name, got, want)
		}
	}
}

// A bundle must share its space for logs among all profiles. Otherwise the long logs of one agent would fill the memory, or
// leave no space for other logs.
func TestTheLogsInABundleShareTheirRoom(t *testing.T) {
	home := t.TempDir()
	text := fmt.Sprintf("home: %s\nagent: {user: \"%d:%d\"}\n", home, os.Getuid(), os.Getgid())
	if err := os.WriteFile(home+"/hinit.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const profiles = 32
	for i := range profiles {
		if err := os.MkdirAll(fmt.Sprintf("%s/logs/gateways/p%d", home, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	term := &cli.Terminal{Env: func(name string) (string, bool) {
		value := map[string]string{"HINIT_RUNTIME_DIR": home, "HINIT_CONFIG": home + "/hinit.yaml"}[name]
		return value, value != ""
	}}
	total := 0
	for _, p := range (&bundle{Terminal: term, deadline: time.Now().Add(testkit.Patience)}).logParts(1) {
		c := &partBuffer{maxSize: p.maxSize}
		for range 2 {
			_, _ = c.Write(make([]byte, maxPartBytes))
		}
		total += len(c.finish(""))
	}
	if total > maxBundleLogBytes || total < maxBundleLogBytes-profiles {
		t.Errorf("%d bytes of logs are kept", total)
	}
}

// A bundle must mask a secret in every form: unchanged, escaped for a terminal, and escaped as JSON, as in status.json.
func TestABundleHidesASecretInEachForm(t *testing.T) {
	for _, secret := range []string{`pass"word\with-a-tail`, "pässword-with-a-tail", "colour\x1b[31m-with-a-tail", "plain-with-a-tail"} {
		t.Setenv("SOME_TOKEN", "first-line\n"+secret)
		set := redact.NewSecrets((&bundle{Terminal: unconnectedTerminal(t), deadline: time.Now().Add(testkit.Patience)}).secrets(client.Status{}).values)
		var doc strings.Builder
		if err := cmdline.WriteJSON(&doc, secret, ""); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{secret, show.EscapeLine(secret), doc.String()} {
			if got := string((&redact.Masker{}).Hide([]byte(text), set)); strings.Contains(got, "with-a-tail") {
				t.Errorf("%q became %q", text, got)
			}
		}
	}
}

func TestArchiveOfFilesOfAnySize(t *testing.T) {
	var files []bundlePart
	for _, n := range []int{0, 1, 511, 512, 513, 100_000} {
		files = append(files, bundlePart{name: "f" + strings.Repeat("x", n%7), content: bytes.Repeat([]byte("a"), n)})
	}
	var out bytes.Buffer
	if err := writeTarGz(&out, "d", files, time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(z)
	for _, f := range files {
		h, err := archive.Next()
		if err != nil || h.Name != "d/"+f.name || h.Size != int64(len(f.content)) || !h.ModTime.Equal(time.Unix(1e9, 0)) {
			t.Fatalf("got %+v, %v", h, err)
		}
	}
	if _, err := archive.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last: %v", err)
	}
}

// A bundle must name the services whose variables it could not read, because their logs may contain their secrets.
func TestABundleNamesTheServiceWhoseSecretsItDoesNotKnow(t *testing.T) {
	t.Parallel()
	here := client.Service{Name: "here", PID: os.Getpid()}
	_, err := serviceVariables(unconnectedTerminal(t), client.Status{Services: []client.Service{here, {Name: "down"}}})
	if err == nil || !strings.HasPrefix(err.Error(), "here: ") {
		t.Errorf("it says %v", err)
	}
}
