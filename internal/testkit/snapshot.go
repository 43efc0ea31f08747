package testkit

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TreeSnapshot returns a text about every file of a tree: path, owner, mode, inode, size and time of change. Without a change,
// two texts are equal.
func TreeSnapshot(t testing.TB, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %d:%d %o %d %d %v\n", path, st.Uid, st.Gid, st.Mode, st.Ino, st.Size, st.Ctim)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
