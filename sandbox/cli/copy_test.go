package cli_test

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/cmdline"
	"hinit/internal/testkit"
	"hinit/sandbox/archive"
	"hinit/sandbox/cli"
)

// TestANameInASandboxDoesNotReachTheTerminalThatCopiesIt checks that errors of hinit sandbox cp
// mask control characters in file names.
func TestANameInASandboxDoesNotReachTheTerminalThatCopiesIt(t *testing.T) {
	sends := func(_ context.Context, _ []string, _ io.Reader, out, _ io.Writer) int {
		archive := tar.NewWriter(out)
		_ = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "dir/", Mode: 0o755})
		_ = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeFifo, Name: "dir/\x1b]52;c;aGVsbG8=\a"})
		return cmdline.ExitDone
	}
	var errs strings.Builder
	code := cli.Copy(t.Context(), []string{"cp", ":/dir", filepath.Join(t.TempDir(), "to")}, sends, io.Discard, &errs)
	if output := errs.String(); code != cmdline.ExitFailed || strings.ContainsAny(output, "\x1b\a") || !strings.Contains(output, `\x1b]52`) {
		t.Errorf("it ends with %d and says %q", code, output)
	}
}

// TestCopyWroteWhereALinkOfAnAgentLed checks that root's copy from a sandbox into the data volume
// follows no link of an agent.
func TestCopyWroteWhereALinkOfAnAgentLed(t *testing.T) {
	if os.Geteuid() != 0 {
		testkit.SkipOrFail(t, "needs root")
	}
	dir := t.TempDir()
	volume, roots := filepath.Join(dir, "data"), filepath.Join(dir, "root")
	for _, d := range []string{volume, roots, volume + "/real"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(roots, volume+"/inbox"), os.Lchown(volume+"/inbox", 10000, 10000), os.Chown(volume, 10000, 10000)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(roots+"/passwd", []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	send := func(_ context.Context, _ []string, _ io.Reader, out, _ io.Writer) int {
		packed, err := archive.OneFile("passwd", 0o644, []byte("the agent's"))
		if err == nil {
			_, err = io.Copy(out, packed)
		}
		return map[bool]int{false: 1}[err == nil]
	}
	for _, to := range []string{"/inbox", "/inbox/", "/inbox/passwd", "/inbox/new"} {
		var output strings.Builder
		if code := cli.Copy(t.Context(), []string{"cp", ":/tmp/passwd", volume + to}, send, io.Discard, &output); code == 0 {
			t.Errorf("cp to %s: code 0", to)
		}
		if !strings.Contains(output.String(), "symbolic link") {
			t.Errorf("cp to %s says %q", to, output.String())
		}
	}
	var got strings.Builder
	receive := func(_ context.Context, _ []string, in io.Reader, _, _ io.Writer) int {
		_, _ = io.Copy(&got, in)
		return 0
	}
	if code := cli.Copy(t.Context(), []string{"cp", volume + "/inbox/passwd", ":/tmp/"}, receive, io.Discard, io.Discard); code == 0 || got.Len() > 0 {
		t.Errorf("a file of root was sent: code %d, %d bytes", code, got.Len())
	}
	if text, err := os.ReadFile(roots + "/passwd"); string(text) != "root's" {
		t.Errorf("root's file is now %q, %v", text, err)
	}
	if list, err := os.ReadDir(roots); len(list) != 1 {
		t.Errorf("root's directory has %v, %v", list, err)
	}
	for _, to := range []string{"/real", "/real/", "/real/other"} {
		if code := cli.Copy(t.Context(), []string{"cp", ":/tmp/passwd", volume + to}, send, io.Discard, t.Output()); code != 0 {
			t.Errorf("cp to %s: code %d", to, code)
		}
	}
	if text, err := os.ReadFile(volume + "/real/passwd"); string(text) != "the agent's" {
		t.Errorf("the copy is %q, %v", text, err)
	}
}
