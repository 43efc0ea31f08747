package cli_test

import (
	"archive/tar"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/cmdline"
	"hinit/sandbox/cli"
)

// A name in a sandbox wrote to the clipboard of root's terminal, by an escape sequence in the error of hinit sandbox cp.
func TestANameInASandboxDoesNotReachTheTerminalThatCopiesIt(t *testing.T) {
	sends := func(_ context.Context, _ []string, _ io.Reader, out, _ io.Writer) int {
		archive := tar.NewWriter(out)
		_ = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "dir/", Mode: 0o755})
		_ = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeFifo, Name: "dir/\x1b]52;c;aGVsbG8=\a"})
		return cmdline.Done
	}
	var errs strings.Builder
	code := cli.Copy(t.Context(), []string{"cp", ":/dir", filepath.Join(t.TempDir(), "to")}, sends, io.Discard, &errs)
	if said := errs.String(); code != cmdline.Failed || strings.ContainsAny(said, "\x1b\a") || !strings.Contains(said, `\x1b]52`) {
		t.Errorf("it ends with %d and says %q", code, said)
	}
}
