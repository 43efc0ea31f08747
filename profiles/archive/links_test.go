package archive_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/isolation"
	"hinit/internal/testkit"
	"hinit/profiles/archive"
)

const secret = "SECRET=of-another-profile"

// makeNeighbour creates a profile beside a home, with a secret in each of its files.
func makeNeighbour(t *testing.T, home string) (dir string) {
	t.Helper()
	dir = filepath.Join(filepath.Dir(home), "writer")
	for _, name := range []string{".env", "sessions/c", "sessions/a/b/c"} {
		writeFile(t, filepath.Join(dir, name), secret)
	}
	db := newDatabase(t, filepath.Join(dir, "state.db"))
	must(db.Exec("CREATE TABLE secrets AS SELECT ?1 AS text", secret))(t)
	must(db.Exec("PRAGMA wal_checkpoint(TRUNCATE)"))(t)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func makeLink(t *testing.T, target, at string) {
	t.Helper()
	must(0, os.RemoveAll(at))(t)
	must(0, os.Symlink(target, at))(t)
}

func checkUnchanged(t *testing.T, dir string, before map[string]string) {
	t.Helper()
	if after := treeListing(t, dir); !maps.Equal(after, before) {
		t.Errorf("the other profile has changed:\n%v\n%v", before, after)
	}
}

// snapshotOf returns the path of the only snapshot in a home.
func snapshotOf(t *testing.T, home string) string {
	t.Helper()
	all := must(filepath.Glob(home + "/.hinit-export/*"))(t)
	if len(all) != 1 {
		t.Fatal(all)
	}
	return all[0]
}

func TestAnExportRemovesNothingOfAnotherProfile(t *testing.T) {
	dir, scratch := newHome(t), t.TempDir()
	other := makeNeighbour(t, dir)
	before := treeListing(t, other)
	for _, in := range []string{dir, scratch} {
		writeFile(t, in+"/beside/works/file", "stays")
		for _, target := range []string{other, "../writer", "beside"} {
			makeLink(t, target, in+"/.hinit-export")
			x := archive.Export{Home: dir, Name: "coder", Backup: backup, ScratchDir: map[string]string{scratch: scratch}[in]}
			if _, _, _, err := x.Run(t.Context(), &bytes.Buffer{}); err == nil {
				t.Errorf("the link to %s was used", target)
			}
			checkUnchanged(t, other, before)
			must(os.Stat(in + "/beside/works/file"))(t)
		}
	}
}

// TestAnExportArchivesNothingOfAnotherProfile checks that an export sends no foreign file although
// the agent replaces the snapshot by a link.
func TestAnExportArchivesNothingOfAnotherProfile(t *testing.T) {
	dir := newHome(t)
	makeNeighbour(t, dir)
	x := archive.Export{Home: dir, Name: "coder", Backup: backup, KeepSnapshot: true}
	x.RestartGateway = func() error {
		files := snapshotOf(t, dir) + "/files"
		must(0, os.Rename(files, files+"-mine"))(t)
		makeLink(t, "../../../writer", files)
		return nil
	}
	var out bytes.Buffer
	head, _, kept, err := x.Run(t.Context(), &out)
	if bytes.Contains(out.Bytes(), []byte(secret)) {
		t.Error("the archive has a secret of another profile")
	}
	if err != nil || !kept || !bytes.Contains(out.Bytes(), []byte("soul")) {
		t.Errorf("the profile itself is not in the archive: %v", err)
	}
	// A kept snapshot that has become a link must be refused, too.
	out.Reset()
	x.Snapshot = head.Snapshot
	if _, _, _, err := x.Run(t.Context(), &out); err == nil || out.Len() != 0 {
		t.Errorf("%d bytes of the link were sent", out.Len())
	}
}

// TestAnExportWritesNothingIntoAnotherProfile checks that an export follows no link that the agent
// puts into the snapshot.
func TestAnExportWritesNothingIntoAnotherProfile(t *testing.T) {
	dir := newHome(t)
	other := makeNeighbour(t, dir)
	before := treeListing(t, other)
	x := archive.Export{Home: dir, Name: "coder", Backup: backup}
	x.StopGateway = func() error {
		makeLink(t, "../../../../writer/sessions", snapshotOf(t, dir)+"/files/sessions")
		writeFile(t, dir+"/sessions/new", "planted")
		writeFile(t, dir+"/sessions/a/b/c", "planted too")
		return nil
	}
	_, _, _, err := x.Run(t.Context(), &bytes.Buffer{})
	t.Log(err)
	checkUnchanged(t, other, before)
}

// TestACopyHasNothingOfAnotherProfile checks that a snapshot contains no foreign file although the
// agent replaces a directory by a link during the export.
func TestACopyHasNothingOfAnotherProfile(t *testing.T) {
	dir := newHome(t)
	other := makeNeighbour(t, dir)
	for i := range 20 {
		writeFile(t, dir+"/sessions/"+strings.Repeat("x", i+1), "mine")
		writeFile(t, other+"/sessions/"+strings.Repeat("x", i+1), secret)
	}
	must(0, os.Rename(dir+"/state.db", dir+"/sessions/state.db"))(t)
	seen := false
	x := archive.Export{Home: dir, Name: "coder", Backup: func(_ context.Context, _, _ *os.File, _ string) error {
		if os.Rename(dir+"/sessions", dir+"/sessions-mine") == nil { // Only the first call succeeds.
			makeLink(t, "../writer/sessions", dir+"/sessions")
		}
		return os.ErrInvalid
	}}
	x.StopGateway = func() error {
		seen = true
		checkNoSecret(t, snapshotOf(t, dir))
		return nil
	}
	var out bytes.Buffer
	if _, _, _, err := x.Run(t.Context(), &out); err != nil || !seen || bytes.Contains(out.Bytes(), []byte(secret)) {
		t.Errorf("%v, or the archive has a secret of another profile", err)
	}
}

// TestADatabaseThatBecomesALinkIsNotCopied checks that SQLite does not open a database that the
// agent replaces by a link.
func TestADatabaseThatBecomesALinkIsNotCopied(t *testing.T) {
	if isolation.LandlockABI() == 0 {
		t.Skip("this kernel has no Landlock, by which a profile is isolated")
	}
	dir := newHome(t)
	makeNeighbour(t, dir)
	x := archive.Export{Home: dir, Name: "coder", Backup: func(ctx context.Context, from, to *os.File, name string) error {
		makeLink(t, "../writer/state.db", dir+"/state.db")
		err := backup(ctx, from, to, name)
		if err == nil {
			t.Error("the link was followed")
		}
		return err
	}}
	x.StopGateway = func() error {
		checkNoSecret(t, snapshotOf(t, dir))
		return nil
	}
	var out bytes.Buffer
	if _, _, _, err := x.Run(t.Context(), &out); err != nil || bytes.Contains(out.Bytes(), []byte(secret)) {
		t.Errorf("%v, or the archive has a secret of another profile", err)
	}
}

// checkNoSecret fails the test for each file of a tree that contains the neighbour's secret.
func checkNoSecret(t *testing.T, dir string) {
	t.Helper()
	for name := range treeListing(t, dir) {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil && bytes.Contains(text, []byte(secret)) {
			t.Errorf("%s has a secret of another profile", name)
		}
	}
}

// TestAnExportWaitsForNoPipe checks that a FIFO in place of a snapshot's head does not block an
// export.
func TestAnExportWaitsForNoPipe(t *testing.T) {
	dir := newHome(t)
	x := archive.Export{Home: dir, Name: "coder", Backup: backup, KeepSnapshot: true}
	head, _, _, err := x.Run(t.Context(), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	at := snapshotOf(t, dir) + "/HEAD.json"
	must(0, errors.Join(os.Remove(at), unix.Mkfifo(at, 0o600)))(t)
	defer must(os.OpenFile(at, os.O_RDWR, 0))(t).Close()
	ended := make(chan error, 1)
	go func() {
		x.Snapshot = head.Snapshot
		_, _, _, err := x.Run(t.Context(), &bytes.Buffer{})
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the pipe was a head")
		}
	case <-time.After(testkit.Patience):
		t.Fatal("the export waits for the pipe")
	}
}

// The gateway of a profile could end each export of the profile by a lease on one of its files.
func TestALeaseOnAFileEndsNoExport(t *testing.T) {
	dir := newHome(t)
	f := must(os.OpenFile(dir+"/sessions/a/b/c", os.O_RDWR, 0))(t)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("needs leases: ", err)
	}
	out, head, _ := exportHome(t, archive.Export{Home: dir})
	if left := head.LeftOut["a program has a lease on it"]; len(left) != 1 || left[0] != "sessions/a/b/c" {
		t.Errorf("it says that it left out %v", head.LeftOut)
	}
	must(os.Stat(importHome(t, out) + "/SOUL.md"))(t)
}

func TestAnImportGoesOnWithNoPipe(t *testing.T) {
	im := archive.Import{Dir: t.TempDir(), Name: "two"}
	must(0, errors.Join(os.Mkdir(im.Dir+"/.import-two", 0o700), unix.Mkfifo(im.Dir+"/.import-two/archive", 0o600)))(t)
	_, _, where := im.InterruptedAt()
	im.Offset = 1
	_, _, err := im.Run(strings.NewReader("x"))
	for _, err := range []error{where, err} {
		if err == nil || !strings.Contains(err.Error(), "it is no regular file") {
			t.Error(err)
		}
	}
}
