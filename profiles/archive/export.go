package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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
	Links    bool     // links that lead out of the profile too
	Still    bool     // no process writes to the home, so it is sent without a copy. Snapshot names the archive of From; another archive begins at 0
	Keep     bool     // the snapshot stays
	Snapshot string   // one that was kept
	From     int64    // its archive begins here

	// Backup copies a database whose path begins at the home, as to does unless it is absolute.
	Backup func(home *os.File, from, to string) error
	Quiet  func() error     // called after the first copy, to stop the gateway; may be nil
	Copied func() error     // called when the gateway may start again, with Quiet; may be nil
	Begin  func(from int64) // with Still: called before the first byte, with its position in the archive; may be nil
}

// Run makes the archive and writes it to out. It returns the head of the archive and its checksum. When out fails, the snapshot stays, and
// kept says so: the rest can be sent later.
func (x *Export) Run(out io.Writer) (head Head, sum string, kept bool, err error) {
	home, err := os.Open(x.Home)
	if err != nil {
		return head, "", false, err
	}
	defer home.Close()
	if x.Still {
		head, sum, err = x.sendStill(home, out)
		return head, sum, false, err
	}
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
	files, err := os.OpenRoot(dir + "/files")
	if err != nil {
		return head, "", err
	}
	defer files.Close()
	sum, err = x.write(text, files, out)
	return head, sum, err
}

// sendStill writes the archive of a home that no process changes. The same home gives the same bytes.
func (x *Export) sendStill(home *os.File, out io.Writer) (head Head, sum string, err error) {
	files, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(home.Fd())))
	if err != nil {
		return head, "", err
	}
	defer files.Close()
	head = Head{Format: format, Profile: x.Name, Hinit: x.Version, Moment: OneMoment, Secrets: x.Secrets, Clone: x.Clone, LeftOut: make(map[string]Names)}
	content := sha256.New()
	err = x.each(files, head.leave, func(rel, target string, info fs.FileInfo) error {
		fmt.Fprintf(content, "%q %q %d %d %d\n", rel, target, info.Size(), info.ModTime().UnixNano(), changedAt(info).UnixNano())
		if head.Files++; info.Mode().IsRegular() {
			head.Bytes += info.Size()
		}
		if at := changedAt(info).UTC(); head.Created.Before(at) {
			head.Created = at
		}
		return nil
	})
	head.Snapshot = hex.EncodeToString(content.Sum(nil))[:24]
	text, jsonErr := json.Marshal(head)
	if err = errors.Join(err, jsonErr); err != nil {
		return head, "", err
	}
	if x.Snapshot != head.Snapshot {
		x.From = 0
	}
	if x.Begin != nil {
		x.Begin(x.From)
	}
	sum, err = x.write(text, files, out)
	return head, sum, err
}

// write writes the archive of a directory, from x.From on. It returns its checksum.
func (x *Export) write(head []byte, files *os.Root, out io.Writer) (sum string, err error) {
	w, all := tar.NewWriter(&behind{out, x.From}), newSums(head)
	err = pack(w, &tar.Header{Name: headName, Mode: 0o600, Size: int64(len(head))}, bytes.NewReader(head))
	if err == nil {
		err = x.each(files, func(string, string) {}, func(rel, target string, info fs.FileInfo) error { return packFile(w, files, rel, target, info, all) })
	}
	if err == nil {
		sum = all.text()
		err = pack(w, &tar.Header{Name: sumsName, Mode: 0o600, Size: int64(len(sum))}, bytes.NewReader([]byte(sum)))
	}
	return sum, errors.Join(err, w.Close())
}

// each calls do with the files of a directory in the order of an archive. With Still, each calls leave for each file that the archive leaves
// out.
func (x *Export) each(files *os.Root, leave func(rel, why string), do func(rel, target string, info fs.FileInfo) error) error {
	return fs.WalkDir(files.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		if err != nil || rel == "." {
			return err
		}
		info, err := files.Lstat(rel)
		target := ""
		if err == nil && info.Mode().Type() == fs.ModeSymlink {
			target, err = files.Readlink(rel)
		}
		if err != nil {
			return err
		}
		if x.Still {
			why, skip := x.leftOut(rel, target, info)
			if why != "" {
				leave(rel, why)
			}
			if (skip || why != "") && info.IsDir() {
				return fs.SkipDir
			} else if skip || why != "" {
				return nil
			}
		}
		return do(rel, target, info)
	})
}

func packFile(w *tar.Writer, files *os.Root, rel, target string, info fs.FileInfo, all sums) error {
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
	f, err := files.OpenFile(rel, readFlags, 0)
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
