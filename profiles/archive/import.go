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
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/wholefile"
)

// ImportPrefix and the name of a profile make the name of an import's temporary directory, beside the homes.
const ImportPrefix = ".import-"

// ErrInterrupted means that the stream has ended before the archive was complete. The received part is kept, so that a later
// Import can continue from an Offset.
var ErrInterrupted = errors.New("the stream ended early")

// ErrNoExchange means that the file system has no RENAME_EXCHANGE, so that an existing profile can't be replaced.
var ErrNoExchange = errors.New("this file system can't swap two directories in one step: delete the profile, and import without --replace")

// Import creates a profile from an archive. Set the fields and call Run.
type Import struct {
	Dir                 string       // Directory with the homes of profiles; created if it is missing.
	Name                string       // Name of the new profile.
	Marker              string       // File that every profile must have; "" for none.
	MayReplace          bool         // Whether an existing profile may be replaced; then BeforeCommit must stop its gateway.
	ExistsElsewhere     bool         // Whether a profile of this name exists elsewhere, which the caller replaces after Run.
	AllowWithoutSecrets bool         // Allow an archive without secrets to replace a profile.
	AllowOutsideLinks   bool         // Allow symbolic links that lead out of the profile.
	Offset              int64        // Offset in the archive at which the stream begins, to continue an interrupted import.
	BeforeCommit        func() error // Called before the final rename, when all files are checked and synced; may be nil.
}

// importRun is the state of one call of Import.Run.
type importRun struct {
	*Import

	tempDir       string     // Path of the temporary directory.
	lockedTempDir *directory // The directory tempDir, open and locked.
	archive       *os.File   // The archive: a copy in the temporary directory, or the input itself if it is a regular file.
	canContinue   bool       // Whether archive is a copy in the temporary directory, so that a later import can continue.
	newHome       *os.Root   // The new home, while it is being unpacked.
	head          Head
	sums          checksum
	files         int64
	bytes         int64
}

// Run reads an archive from in and creates the profile. It returns the head and the checksum of the archive. If it fails, an
// existing profile is unchanged.
func (im *Import) Run(in io.Reader) (head Head, sum string, err error) {
	u := &importRun{Import: im, tempDir: filepath.Join(im.Dir, ImportPrefix+im.Name)}
	if err := os.MkdirAll(im.Dir, 0o755); err != nil {
		return head, "", err
	}
	homes, err := os.OpenRoot(im.Dir)
	if err != nil {
		return head, "", err
	}
	defer homes.Close()
	if u.lockedTempDir, err = u.openTemporary(homes); err != nil {
		return head, "", err
	}
	defer u.lockedTempDir.Close()
	if err = u.receive(in); err == nil {
		err = u.makeProfile()
	}
	if cut := errors.Is(err, io.ErrUnexpectedEOF); cut && u.canContinue && u.head.Format > 0 && !u.head.Clone {
		err = ErrInterrupted
	} else if cut {
		err = fmt.Errorf("the archive is not complete: %w", err)
	}
	if err == nil {
		sum = u.sums.text()
	}
	if !errors.Is(err, ErrInterrupted) { // Keep the directory only for a continuation; after a replacement, it contains the old home.
		removeErr := removeAll(im.Dir, u.lockedTempDir.name)
		if err == nil && removeErr != nil {
			removeErr = fmt.Errorf("the profile is imported, but what it replaced is left: %w", removeErr)
		}
		return u.head, sum, errors.Join(err, removeErr)
	}
	_, at, where := im.InterruptedAt()
	return u.head, "", errors.Join(fmt.Errorf("%w: continue with export --snapshot %s --from %d, and import --from %[3]d", err, u.head.Snapshot, at), where)
}

// InterruptedAt describes an interrupted import, so that the sender can continue it. snapshot is the name of the snapshot that
// was being received, and at is the offset in the archive at which the missing part begins.
func (im *Import) InterruptedAt() (snapshot string, at int64, err error) {
	u := importRun{Import: im}
	if u.archive, err = wholefile.Open(filepath.Join(im.Dir, ImportPrefix+im.Name, "archive"), readFlags, 0); err != nil {
		return "", 0, err
	}
	defer u.archive.Close()
	at, seekErr := u.archive.Seek(0, io.SeekEnd)
	err = cmp.Or(u.readHead(u.headReader()), seekErr)
	return u.head.Snapshot, at, err
}

// openTemporary creates and locks the temporary directory. If Import.Offset is set, it locks the directory that the interrupted
// import has left.
func (u *importRun) openTemporary(homes *os.Root) (*directory, error) {
	for {
		err := homes.Mkdir(ImportPrefix+u.Name, 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		held, lockErr := openLocked(homes, ImportPrefix+u.Name)
		if lockErr != nil || err == nil || u.Offset > 0 {
			return held, lockErr
		}
		if err := errors.Join(removeAll(u.Dir, held.name), held.Close()); err != nil { // Remove the directory of an interrupted import.
			return nil, err
		}
	}
}

// receive provides the archive as the file u.archive. If in is not a regular file, it copies in to a file. It checks the head
// before it receives the rest, so that an unsuitable archive is refused early.
func (u *importRun) receive(in io.Reader) (err error) {
	if f, is := in.(*os.File); is && u.Offset == 0 {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			u.archive = f
			return cmp.Or(u.readHead(u.headReader()), u.checkTarget())
		}
	}
	u.canContinue = true
	if u.archive, err = wholefile.Open(u.tempDir+"/archive", os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600); err != nil {
		return err
	}
	start := u.headReader()
	if u.Offset == 0 {
		start = io.TeeReader(in, u.archive) // A TeeReader reads no byte beyond the head, and the sender may take long for the first file.
	}
	err = cmp.Or(u.readHead(start), u.checkTarget())
	at, seekErr := u.archive.Seek(0, io.SeekEnd)
	if err = cmp.Or(err, seekErr); err != nil {
		return err
	}
	if u.Offset > 0 && u.Offset != at {
		return ErrInterrupted
	}
	most := u.head.Bytes + 16<<10*(u.head.Files+1024) - at // Per header, allow for a path and a link target of 4096 bytes each.
	n, err := io.Copy(u.archive, io.LimitReader(in, most))
	if err == nil && n == most {
		return errors.New("the archive is larger than its head says")
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) && !u.head.Clone { // A clone ends with its sender, so nothing can continue it.
		return fmt.Errorf("%w (%w)", ErrInterrupted, err)
	}
	return err
}

// headReader returns a reader of the beginning of the archive, which contains the head.
func (u *importRun) headReader() io.Reader { return io.NewSectionReader(u.archive, 0, 2*maxHead) }

// readHead reads the head of the archive from start. It reads no byte beyond the head.
func (u *importRun) readHead(start io.Reader) error {
	t := tar.NewReader(io.LimitReader(start, 2*maxHead)) // No valid head is larger.
	h, err := t.Next()
	if errors.Is(err, io.EOF) { // The stream is empty, for example because the export has failed at its start.
		return io.ErrUnexpectedEOF
	} else if err != nil && !errors.Is(err, tar.ErrHeader) {
		return err
	} else if err != nil || h.Name != headName || h.Size > maxHead {
		return errors.New("it is not an archive of a profile")
	}
	text, err := io.ReadAll(t)
	if err = cmp.Or(err, json.Unmarshal(text, &u.head)); err == nil && (u.head.Format != formatVersion || u.head.Bytes < 0 || u.head.Bytes > 1<<50 || u.head.Files < 0 || u.head.Files > 1<<30) {
		err = fmt.Errorf("its format is %d, and this hinit knows %d; or its size is not possible", u.head.Format, formatVersion)
	}
	u.sums = newSums(text)
	return err
}

// checkTarget returns an error if an existing profile must not be replaced, or if the volume has too little space.
func (u *importRun) checkTarget() error {
	info, err := os.Lstat(filepath.Join(u.Dir, u.Name))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil && !u.ExistsElsewhere:
	case !u.MayReplace || err == nil && !info.IsDir():
		return errors.New("there is a profile or a file of that name; delete it, or replace the profile with --replace")
	case !u.head.Secrets && !u.AllowWithoutSecrets:
		return errors.New("the archive has no secrets, and those of the profile would be lost: export with --secrets, or add --without-secrets")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(u.tempDir, &st); err != nil {
		return err
	}
	need, free := u.head.Bytes+u.head.Files*int64(st.Bsize), int64(st.Bavail)*int64(st.Bsize) //nolint:unconvert // Bsize is 32 bits wide on some machines
	if u.canContinue {
		need += max(need-u.Offset, 0)
	}
	if need > free || st.Files > 0 && uint64(u.head.Files) > st.Ffree {
		return fmt.Errorf("it needs %d bytes and %d files, and the volume has %d and %d free: %w", need, u.head.Files, free, st.Ffree, unix.ENOSPC)
	}
	return nil
}

// makeProfile unpacks and checks the archive, calls Import.BeforeCommit, and renames the unpacked directory to the home of the
// profile.
func (u *importRun) makeProfile() (err error) {
	home := u.tempDir + "/home"
	if err := errors.Join(removeAll(u.tempDir, "home"), os.Mkdir(home, 0o700)); err != nil {
		return err
	}
	if u.newHome, err = os.OpenRoot(home); err != nil {
		return err
	}
	defer u.newHome.Close()
	if err := u.eachFile(u.unpackFile); err != nil {
		return err
	}
	err = u.eachFile(func(h *tar.Header, rel string, _ io.Reader) error {
		if h.Typeflag != tar.TypeSymlink {
			return nil
		}
		return u.newHome.Symlink(h.Linkname, rel)
	})
	if _, markErr := u.newHome.Lstat(cmp.Or(u.Marker, ".")); err == nil && markErr != nil {
		err = fmt.Errorf("it has no %s, which every profile has: %w", u.Marker, markErr)
	}
	if _, missing := u.newHome.Lstat(".env"); err == nil && missing != nil { // Every profile needs a .env, so create an empty one.
		err = u.newHome.WriteFile(".env", nil, 0o600)
	}
	if err = cmp.Or(err, unix.Syncfs(int(u.lockedTempDir.file.Fd()))); err == nil && u.BeforeCommit != nil {
		err = u.BeforeCommit()
	}
	if err != nil {
		return err
	}
	return u.installHome(home)
}

// eachFile calls do for each file in the archive after the head. rel is the path of the file in the profile. In the last call,
// rel is "" and content is the checksum of the archive.
func (u *importRun) eachFile(do func(h *tar.Header, rel string, content io.Reader) error) error {
	all := io.NewSectionReader(u.archive, 0, math.MaxInt64)
	t := tar.NewReader(all)
	if _, err := t.Next(); err != nil { // Skip the head.
		return err
	}
	for {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			if n, _ := all.Read(make([]byte, 1)); n > 0 { // Zeros end a tar stream, and a crash can leave zeros in a received part.
				return errors.New("the archive is damaged: it ends before its checksum; import it from the beginning")
			}
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case h.Name == sumsName:
			return do(h, "", t)
		}
		rel, err := checkTarHeader(h, u.AllowOutsideLinks)
		if err == nil {
			err = do(h, rel, t)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

// unpackFile is the function for eachFile that unpacks one file or directory, or verifies the checksum at the end. It skips
// symbolic links. makeProfile creates them after all files, so that no file is written through a link.
func (u *importRun) unpackFile(h *tar.Header, rel string, content io.Reader) error {
	if rel == "" {
		if text, err := io.ReadAll(io.LimitReader(content, 2*sha256.Size)); err != nil || string(text) != u.sums.text() {
			return cmp.Or(err, errors.New("the checksum of the archive is wrong"))
		}
		return nil
	}
	u.sums.add(h)
	u.files, u.bytes = u.files+1, u.bytes+h.Size
	switch {
	case u.files > u.head.Files || h.Size > u.head.Bytes || u.bytes > u.head.Bytes: // Check each size alone, too: their sum may overflow.
		return fmt.Errorf("the archive has more than the %d files and %d bytes of its head", u.head.Files, u.head.Bytes)
	case h.Typeflag == tar.TypeSymlink:
		return nil
	case h.Typeflag == tar.TypeDir:
		return errors.Join(u.newHome.Mkdir(rel, 0o700), u.newHome.Chmod(rel, fs.FileMode(h.Mode)|0o700))
	}
	f, err := u.newHome.OpenFile(rel, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
	return errors.Join(f.Chmod(fs.FileMode(h.Mode)), u.newHome.Chtimes(rel, time.Now(), h.ModTime))
}

// installHome renames the new home to its final path. If the import replaces a profile, the same rename (RENAME_EXCHANGE) moves the
// old home to the temporary path.
func (u *importRun) installHome(home string) error {
	at := filepath.Join(u.Dir, u.Name)
	flags, mode := uint(unix.RENAME_NOREPLACE), fs.FileMode(0o755)
	if info, err := os.Lstat(at); err == nil && u.MayReplace {
		flags, mode = unix.RENAME_EXCHANGE, info.Mode().Perm()|0o700
	}
	if err := u.newHome.Chmod(".", mode); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, home, unix.AT_FDCWD, at, flags)
	if errors.Is(err, unix.EINVAL) && flags == unix.RENAME_EXCHANGE {
		return ErrNoExchange
	} else if errors.Is(err, unix.EINVAL) {
		err = os.Rename(home, at) // Without RENAME_NOREPLACE, Rename itself replaces only an empty directory.
	}
	return cmp.Or(err, unix.Syncfs(int(u.lockedTempDir.file.Fd())))
}
