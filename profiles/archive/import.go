package archive

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ImportPrefix begins the name of the directory that an archive is unpacked into, beside the homes.
const ImportPrefix = ".import-"

// ErrCut says that the stream did not bring the rest of the archive. The import keeps the part that it has, and can go on.
var ErrCut = errors.New("the stream ended early")

// Import is a profile to be made of an archive.
type Import struct {
	Dir     string       // of the homes; it is made if it is missing
	Name    string       // of the new profile
	Marker  string       // the file that makes a directory a profile, "" for any
	Replace bool         // an existing profile, whose service Ready stops
	Bare    bool         // replace it by an archive without secrets too
	Links   bool         // links may lead out of the profile
	From    int64        // where the stream begins in the archive
	Ready   func() error // called when all is checked and on the disk, before the one step that makes the profile; may be nil
}

// unpacking is the state of a running import.
type unpacking struct {
	*Import

	beside  string   // the directory beside the homes
	held    *os.File // its lock
	archive *os.File // in that directory, or the stream itself
	own     bool     // it is in that directory
	top     *os.Root // the new home
	head    Head
	sums    sums
	files   int64
	bytes   int64
}

// Run reads an archive and makes the profile of it. It returns the head of the archive and its checksum. After an error the profile is as it was
// before.
func (im *Import) Run(in io.Reader) (head Head, sum string, err error) {
	u := &unpacking{Import: im, beside: filepath.Join(im.Dir, ImportPrefix+im.Name)}
	if err := os.MkdirAll(im.Dir, 0o755); err != nil {
		return head, "", err
	}
	if u.held, err = u.place(); err != nil {
		return head, "", err
	}
	defer u.held.Close()
	if err = u.receive(in); err == nil {
		err = u.make()
	}
	if cut := errors.Is(err, io.ErrUnexpectedEOF); cut && u.own && u.head.Format > 0 {
		err = ErrCut
	} else if cut {
		err = fmt.Errorf("the archive is not complete: %w", err)
	}
	if err == nil {
		sum = u.sums.text()
	}
	if !errors.Is(err, ErrCut) { // after a replacement it has the old home
		return u.head, sum, errors.Join(err, os.RemoveAll(u.beside))
	}
	_, at, where := im.Where()
	return u.head, "", errors.Join(fmt.Errorf("%w: go on with export --snapshot %s --from %d, and import --from %[3]d", err, u.head.Snapshot, at), where)
}

// Where returns the snapshot whose import was cut short, and where the rest of the archive begins.
func (im *Import) Where() (snapshot string, at int64, err error) {
	u := unpacking{Import: im}
	if u.archive, err = os.Open(filepath.Join(im.Dir, ImportPrefix+im.Name, "archive")); err != nil {
		return "", 0, err
	}
	defer u.archive.Close()
	info, err := u.archive.Stat()
	if err != nil {
		return "", 0, err
	}
	return u.head.Snapshot, info.Size(), u.begin()
}

// place makes the directory beside the homes, or finds the one of an import that goes on. It returns its lock.
func (u *unpacking) place() (*os.File, error) {
	for {
		err := os.Mkdir(u.beside, 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		held, lockErr := lock(u.beside)
		if lockErr != nil || err == nil || u.From > 0 {
			return held, lockErr
		}
		if err := errors.Join(os.RemoveAll(u.beside), held.Close()); err != nil { // another import has left it
			return nil, err
		}
	}
}

// receive sees to it that the archive is in a file: the stream is one, or it is written to one. First it has a look at the head.
func (u *unpacking) receive(in io.Reader) (err error) {
	if f, is := in.(*os.File); is && u.From == 0 {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			u.archive = f
			return cmp.Or(u.begin(), u.admit())
		}
	}
	u.own = true
	if u.archive, err = os.OpenFile(u.beside+"/archive", os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return err
	}
	at, err := u.archive.Seek(0, io.SeekEnd)
	if err == nil && u.From == 0 {
		at, err = io.CopyN(u.archive, in, 2*mostHead) // the head is in it, or there is none
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := cmp.Or(u.begin(), u.admit()); err != nil {
		return err
	}
	if u.From > 0 && u.From != at {
		return ErrCut
	}
	most := u.head.Bytes + 4096*(u.head.Files+1024) - at
	n, err := io.Copy(u.archive, io.LimitReader(in, most))
	if err == nil && n == most {
		return errors.New("the archive is larger than its head says")
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w (%w)", ErrCut, err)
	}
	return err
}

// begin reads the head of the archive.
func (u *unpacking) begin() error {
	t := tar.NewReader(io.NewSectionReader(u.archive, 0, 2*mostHead))
	h, err := t.Next()
	if err != nil || h.Name != headName || h.Size > mostHead {
		return errors.Join(errors.New("it is no archive of a profile"), err)
	}
	text, err := io.ReadAll(t)
	if err == nil {
		err = json.Unmarshal(text, &u.head)
	}
	if err == nil && (u.head.Format != format || u.head.Bytes < 0 || u.head.Bytes > 1<<50 || u.head.Files < 0 || u.head.Files > 1<<30) {
		err = fmt.Errorf("its format is %d, and this hinit knows %d; or its size is not possible", u.head.Format, format)
	}
	u.sums = newSums(text)
	return err
}

// admit refuses an archive for which there is no place or no room.
func (u *unpacking) admit() error {
	info, err := os.Lstat(filepath.Join(u.Dir, u.Name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !u.Replace || !info.IsDir():
		return errors.New("there is a profile or a file of that name; delete it, or replace the profile with --replace")
	case !u.head.Secrets && !u.Bare:
		return errors.New("the archive has no secrets, and those of the profile would be lost: export with --secrets, or add --without-secrets")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(u.beside, &st); err != nil {
		return err
	}
	need, free := u.head.Bytes+u.head.Files*st.Bsize, int64(st.Bavail)*st.Bsize
	if u.own {
		need += max(need-u.From, 0)
	}
	if need > free || st.Files > 0 && uint64(u.head.Files) > st.Ffree {
		return fmt.Errorf("it needs %d bytes and %d files, and the volume has %d and %d free: %w", need, u.head.Files, free, st.Ffree, unix.ENOSPC)
	}
	return nil
}

// make makes the profile of the archive.
func (u *unpacking) make() (err error) {
	home := u.beside + "/home"
	if err := errors.Join(os.RemoveAll(home), os.Mkdir(home, 0o700)); err != nil {
		return err
	}
	if u.top, err = os.OpenRoot(home); err != nil {
		return err
	}
	defer u.top.Close()
	if err := u.each(u.take); err != nil {
		return err
	}
	err = u.each(func(h *tar.Header, rel string, _ io.Reader) error {
		if h.Typeflag != tar.TypeSymlink {
			return nil
		}
		return u.top.Symlink(h.Linkname, rel)
	})
	if _, markErr := u.top.Lstat(cmp.Or(u.Marker, ".")); err == nil && markErr != nil {
		err = fmt.Errorf("it has no %s, which every profile has: %w", u.Marker, markErr)
	}
	if err != nil {
		return err
	}
	env, err := u.top.OpenFile(".env", os.O_WRONLY|os.O_CREATE, 0o600) // as a new profile
	if err = errors.Join(err, env.Close(), unix.Syncfs(int(u.held.Fd()))); err == nil && u.Ready != nil {
		err = u.Ready()
	}
	if err != nil {
		return err
	}
	return u.commit(home)
}

// each calls do with each file of the archive. The last one is the checksum.
func (u *unpacking) each(do func(h *tar.Header, rel string, content io.Reader) error) error {
	if _, err := u.archive.Seek(0, io.SeekStart); err != nil {
		return err
	}
	t := tar.NewReader(u.archive)
	if _, err := t.Next(); err != nil { // the head
		return err
	}
	for {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case h.Name == sumsName:
			return do(h, "", t)
		}
		rel, err := check(h, u.Links)
		if err == nil {
			err = do(h, rel, t)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

// take makes one file or directory. Links come later: until then no name leads anywhere else.
func (u *unpacking) take(h *tar.Header, rel string, content io.Reader) error {
	if rel == "" {
		if text, err := io.ReadAll(io.LimitReader(content, 2*sha256.Size)); err != nil || string(text) != u.sums.text() {
			return cmp.Or(err, errors.New("the checksum of the archive is wrong"))
		}
		return nil
	}
	u.sums.add(h)
	u.files, u.bytes = u.files+1, u.bytes+h.Size
	switch {
	case u.files > u.head.Files || u.bytes > u.head.Bytes:
		return fmt.Errorf("the archive has more than the %d files and %d bytes of its head", u.head.Files, u.head.Bytes)
	case h.Typeflag == tar.TypeSymlink:
		return nil
	case h.Typeflag == tar.TypeDir:
		return errors.Join(u.top.Mkdir(rel, 0o700), u.top.Chmod(rel, fs.FileMode(h.Mode)|0o700))
	}
	f, err := u.top.OpenFile(rel, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, sum), content, h.Size); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != h.PAXRecords[sumRecord] {
		return errors.New("its checksum is wrong")
	}
	return errors.Join(f.Chmod(fs.FileMode(h.Mode)), u.top.Chtimes(rel, time.Now(), h.ModTime))
}

// commit makes the directory the home of the profile. A profile that is replaced gets the place of the new one in the same step.
func (u *unpacking) commit(home string) error {
	at := filepath.Join(u.Dir, u.Name)
	flags, mode := uint(unix.RENAME_NOREPLACE), fs.FileMode(0o755)
	if info, err := os.Lstat(at); err == nil && u.Replace {
		flags, mode = unix.RENAME_EXCHANGE, info.Mode().Perm()|0o700
	}
	if err := u.top.Chmod(".", mode); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, home, unix.AT_FDCWD, at, flags)
	if errors.Is(err, unix.EINVAL) && flags == unix.RENAME_EXCHANGE {
		return errors.New("this file system can't swap two directories in one step: delete the profile, and import without --replace")
	} else if errors.Is(err, unix.EINVAL) {
		err = os.Rename(home, at) // a directory replaces only an empty one
	}
	return cmp.Or(err, unix.Syncfs(int(u.held.Fd())))
}
