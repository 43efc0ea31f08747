package cli

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestACopyFromASandboxStaysInItsTarget: the sandbox sends names that lead out, links, and in a second copy files below what was a link in the first.
func TestACopyFromASandboxStaysInItsTarget(t *testing.T) {
	home := t.TempDir()
	secret := filepath.Join(home, ".ssh", "authorized_keys")
	if err := os.MkdirAll(filepath.Dir(secret), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(home, "out")
	for i, entries := range [][]tar.Header{
		{{Name: "x", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "x/a", Typeflag: tar.TypeSymlink, Linkname: "../.ssh"}, {Name: "x/b", Typeflag: tar.TypeSymlink, Linkname: "../.ssh/authorized_keys"}},
		{{Name: "x/a", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "x/a/authorized_keys", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
		{{Name: "x/a/authorized_keys", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
		{{Name: "x/../../.ssh/authorized_keys", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
		{{Name: "x/b", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
		{{Name: "x/.ssh/authorized_keys", Typeflag: tar.TypeReg, Mode: 0o6755, Size: 4}},
	} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, h := range entries {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = w.Write([]byte("evil"))
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		err := unpack(&archive, target)
		if text, readErr := os.ReadFile(secret); readErr != nil || string(text) != "mine" {
			t.Fatalf("copy %d replaced a file beside the target: %q, %v (%v)", i, text, readErr, err)
		}
	}
	info, err := os.Lstat(filepath.Join(target, "b"))
	if err != nil || !info.Mode().IsRegular() || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		t.Errorf("a file that was sent in the place of a link is %v, %v", info, err)
	}
}
