package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Export is an archive to be made.
type Export struct {
	Home     string   // of the profile
	Name     string   // of the profile
	Version  string   // of hinit
	Skip     []string // paths in the home that belong to no profile, or to others
	Scratch  string   // absolute path of a directory for the snapshot, "" is in the home
	Secrets  bool     // files with secrets too
	Clone    bool     // without what two profiles must not share
	Keep     bool     // the snapshot stays
	Snapshot string   // one that was kept
	From     int64    // its archive begins here

	// Backup copies a database whose path begins at the home, as to does unless it is absolute.
	Backup func(home *os.File, from, to string) error
	Quiet  func() error // called after the first copy, to stop the gateway; may be nil
	Copied func() error // called when the gateway may start again, with Quiet; may be nil
}

// Run makes the archive and writes it to out. It returns the head of the archive and its checksum. When out fails, the snapshot stays, and
// kept says so: the rest can be sent later.
func (x *Export) Run(out io.Writer) (head Head, sum string, kept bool, err error) {
	home, err := os.Open(x.Home)
	if err != nil {
		return head, "", false, err
	}
	defer home.Close()
	live := "/proc/self/fd/" + strconv.Itoa(int(home.Fd())) // it stays the home when that is renamed
	base := filepath.Join(cmp.Or(x.Scratch, live), stagingDir)
	dir, held, err := x.place(base)
	if err != nil {
		return head, "", false, err
	}
	defer held.Close()
	if x.Snapshot == "" {
		err = (&snapshot{Export: x, home: home, live: live, files: dir + "/files"}).take()
	}
	taken := err == nil
	if taken {
		head, sum, err = x.send(dir, out)
	}
	if kept = taken && (x.Keep || err != nil) && !x.Clone; !kept {
		err = errors.Join(err, os.RemoveAll(dir))
		_ = os.Remove(base) // it stays while it has snapshots
	}
	return head, sum, kept, err
}

// place makes a directory for a snapshot, or finds the one that was kept. It returns its lock.
func (x *Export) place(base string) (dir string, held *os.File, err error) {
	if dir = filepath.Join(base, filepath.Base(x.Snapshot)); x.Snapshot == "" {
		old, _ := filepath.Glob(base + "/*")
		for _, dir := range old {
			if held, err := lock(dir); err == nil { // no command works on it
				_ = errors.Join(os.RemoveAll(dir), held.Close())
			}
		}
		for try := 0; try < 10 && held == nil; try++ { // another export may take the directory for an old one, before it is locked
			dir = filepath.Join(base, rand.Text()[:12])
			if err = os.MkdirAll(dir, 0o700); err == nil {
				held, err = lock(dir)
			}
		}
		if errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("%w; name a directory for the copy with --scratch", err)
		}
		return dir, held, err
	}
	held, err = lock(dir)
	return dir, held, err
}

// lock takes the lock of a directory. The kernel releases it with the process.
func lock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	opened, _ := f.Stat()
	if there, statErr := os.Lstat(dir); err != nil || statErr != nil || !os.SameFile(opened, there) {
		_ = f.Close()
		return nil, errors.New("another command works on it; wait for its end")
	}
	return f, nil
}

// send writes the archive of a snapshot, from x.From on.
func (x *Export) send(dir string, out io.Writer) (head Head, sum string, err error) {
	text, err := os.ReadFile(filepath.Join(dir, headName))
	if err == nil {
		err = json.Unmarshal(text, &head)
	}
	if err != nil {
		return head, "", err
	}
	w, all := tar.NewWriter(&behind{out, x.From}), newSums(text)
	err = pack(w, &tar.Header{Name: headName, Mode: 0o600, Size: int64(len(text))}, bytes.NewReader(text))
	if err == nil {
		err = filepath.WalkDir(dir+"/files", func(path string, d fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(dir+"/files", path)
			if err != nil || rel == "." {
				return err
			}
			return packFile(w, path, rel, all)
		})
	}
	if err == nil {
		sum = all.text()
		err = pack(w, &tar.Header{Name: sumsName, Mode: 0o600, Size: int64(len(sum))}, bytes.NewReader([]byte(sum)))
	}
	return head, sum, errors.Join(err, w.Close())
}

func packFile(w *tar.Writer, path, rel string, all sums) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	target, _ := os.Readlink(path) // "" is no link
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	// Whose the file is has no meaning elsewhere.
	*h = tar.Header{Typeflag: h.Typeflag, Name: within + rel, Linkname: target, Size: h.Size, Mode: h.Mode & 0o777, ModTime: h.ModTime, Format: tar.FormatPAX}
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	if h.Typeflag != tar.TypeReg {
		all.add(h)
		return w.WriteHeader(h)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum, err := sumOf(f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	h.PAXRecords = map[string]string{sumRecord: sum}
	all.add(h)
	return pack(w, h, f)
}

func pack(w *tar.Writer, h *tar.Header, content io.Reader) error {
	err := w.WriteHeader(h)
	if err == nil {
		_, err = io.CopyN(w, content, h.Size)
	}
	return err
}

// behind drops the first bytes of what is written.
type behind struct {
	w    io.Writer
	skip int64
}

// Write implements io.Writer.
func (b *behind) Write(p []byte) (int, error) {
	drop := min(b.skip, int64(len(p)))
	b.skip -= drop
	if drop == int64(len(p)) {
		return len(p), nil
	}
	n, err := b.w.Write(p[drop:])
	return int(drop) + n, err
}
