package owntree_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
	"hinit/internal/testkit"
)

const oldUID, newUID = 10000, 20001

// makeLinkedHome makes a home that has a file of the previous user with a second name outside the home. It returns the
// directory of the home.
func makeLinkedHome(t *testing.T, name string, write func(f *os.File) error) (d *fsutil.Dir, home string) {
	t.Helper()
	testkit.NeedRoot(t)
	top := t.TempDir()
	home = filepath.Join(top, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(home, name))
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(write(f), f.Chown(oldUID, oldUID), f.Close(), os.Link(f.Name(), filepath.Join(top, "elsewhere")))
	if err == nil {
		d, err = fsutil.OpenNoLink(top, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, home
}

func changeTestOwners(d *fsutil.Dir, between func() error) (owntree.Walk, error) {
	w := owntree.Walk{NewOwner: fsutil.Owner{UID: newUID, GID: newUID}, RefuseHardLinked: true, CopyLinkedUID: oldUID, BetweenBatches: between}
	err := w.ChangeOwners(d, "home", false)
	return w, err
}

// TestTheCopyOfASparseFileIsSparse checks that the copy of a file with two names keeps its holes. An agent can make a
// file of a terabyte without data, whose full copy would fill the volume.
func TestTheCopyOfASparseFileIsSparse(t *testing.T) {
	const size = 1 << 40
	name := string(bytes.Repeat([]byte("n"), 255)) // the name is so long that no temporary name can be longer
	d, home := makeLinkedHome(t, name, func(f *os.File) error {
		_, err := f.WriteAt([]byte("middle"), size/2)
		return errors.Join(err, f.Truncate(size))
	})
	if w, err := changeTestOwners(d, nil); err != nil || w.Failed != 0 || w.Changed != 2 {
		t.Fatalf("%+v, %v", w, err)
	}
	info, err := os.Lstat(filepath.Join(home, name))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Size != size || st.Blocks > 1<<10 || st.Uid != newUID || st.Nlink != 1 {
		t.Errorf("the copy is %+v", st)
	}
	f, err := os.Open(filepath.Join(home, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, 8)
	if _, err := f.ReadAt(data, size/2-1); err != nil || string(data) != "\x00middle\x00" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestACopyHasAllData(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcde\n"), 300_000) // several blocks of the copy, the last one not full
	d, home := makeLinkedHome(t, "file", func(f *os.File) error { _, err := f.Write(text); return err })
	pieces := 0
	if w, err := changeTestOwners(d, func() error { pieces++; return nil }); err != nil || w.Failed != 0 || pieces < 4 {
		t.Fatalf("%+v after %d pieces, %v", w, pieces, err)
	}
	if got, err := os.ReadFile(home + "/file"); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestACopyOfAFileThatGrowsEndsAtItsSize checks that a copy ends at the size that the file had at the beginning. An
// agent can make the file larger meanwhile, and root would write zeros until its end. RLIMIT_FSIZE keeps a failing test
// from filling the disk.
func TestACopyOfAFileThatGrowsEndsAtItsSize(t *testing.T) {
	const size, grown = 3 << 20, 64 << 20
	d, home := makeLinkedHome(t, "file", func(f *os.File) error {
		_, err := f.Write(make([]byte, 1<<20))
		return errors.Join(err, f.Truncate(size))
	})
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_FSIZE, &old) }()
	pieces := 0
	w, err := changeTestOwners(d, func() error {
		if pieces++; pieces > 1 {
			return nil
		}
		f, err := os.OpenFile(home+"/file", os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt([]byte("grown"), grown)
		return errors.Join(err, f.Truncate(1<<40), unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 2 * grown, Max: old.Max}))
	})
	if err != nil || w.Failed != 0 {
		t.Errorf("%+v, %v", w, err)
	}
	if info, err := os.Stat(home + "/file"); err != nil || info.Size() != size {
		t.Errorf("%v, %v", info, err)
	}
}

// TestACopyEndsWhenItsTimeIsOver checks that a copy stops at its deadline and leaves no temporary file.
func TestACopyEndsWhenItsTimeIsOver(t *testing.T) {
	d, home := makeLinkedHome(t, "file", func(f *os.File) error { _, err := f.Write(make([]byte, 8<<20)); return err })
	pieces, over, during := 0, errors.New("over"), 0
	w, err := changeTestOwners(d, func() error {
		if pieces++; pieces < 4 {
			return nil
		}
		entries, _ := os.ReadDir(home)
		during = len(entries)
		return over
	})
	if !errors.Is(err, over) || w.Failed != 0 || pieces != 4 {
		t.Errorf("%+v after %d pieces, %v", w, pieces, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(home+"/file", &st); err != nil || st.Nlink != 2 || st.Uid != oldUID {
		t.Errorf("the file is %+v, %v", st, err)
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) != 1 || during != 1 {
		t.Errorf("%d names during the copy, then %v, %v", during, entries, err)
	}
}

// TestAHomeThatIsMovedIntoTheTreeDuringTheWalkIsSeen checks that a home that the old owner moves into the tree during
// the walk is not given away. The walk searches the tree for homes before; the new owner, whose uid this home has,
// could otherwise read it.
func TestAHomeThatIsMovedIntoTheTreeDuringTheWalkIsSeen(t *testing.T) {
	const mark = ".record"
	for _, during := range []bool{false, true} {
		d, home := makeLinkedHome(t, "file", func(*os.File) error { return nil })
		hidden := filepath.Join(filepath.Dir(home), "hidden")
		if err := errors.Join(os.Mkdir(hidden, 0o700), os.WriteFile(hidden+"/"+mark, nil, 0o600), os.Chown(hidden, newUID, newUID), os.Chown(hidden+"/"+mark, newUID, newUID)); err != nil {
			t.Fatal(err)
		}
		move := func() { _ = os.Rename(hidden, home+"/x") } // only the first call of move succeeds
		if !during {
			move()
		}
		w := owntree.Walk{
			NewOwner: fsutil.Owner{UID: newUID, GID: newUID, HomeMarkerFile: mark}, RefuseHardLinked: true, CopyLinkedUID: oldUID, TopLast: true, TopMode: 0o700,
			OnFound: func(string, uint32, error) { move() },
		}
		err := w.ChangeOwners(d, "home", false)
		var st unix.Stat_t
		if errors.Is(err, owntree.ErrOwnerHasHome) && unix.Stat(home, &st) == nil && st.Uid != newUID {
			continue
		}
		t.Errorf("moved during the walk: %t: %v, and the home is uid %d's", during, err, st.Uid)
	}
}

// TestADirectoryThatIsRemovedDuringTheWalkIsNoFailure checks that a profile that the agent removes while hinit changes its owner
// causes no warning. The status said, as long as the container lived, that its directory still belonged to another user.
func TestADirectoryThatIsRemovedDuringTheWalkIsNoFailure(t *testing.T) {
	d, home := makeLinkedHome(t, "file", func(*os.File) error { return nil })
	if err := errors.Join(os.Remove(filepath.Join(home, "file")), os.Chown(home, oldUID, oldUID)); err != nil {
		t.Fatal(err)
	}
	w := owntree.Walk{NewOwner: fsutil.Owner{UID: newUID, GID: newUID}}
	w.OnFound = func(string, uint32, error) { _ = os.Remove(home) } // only the first removal succeeds
	if err := w.ChangeOwners(d, "home", false); err != nil || w.Failed > 0 || w.Changed != 1 {
		t.Errorf("%d failures, %d changed, %v", w.Failed, w.Changed, err)
	}
}
