package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
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

	"golang.org/x/sys/unix"
)

// Export makes an archive of one profile. Set the fields and call Run.
type Export struct {
	Home              string   // Home of the profile.
	Name              string   // Name of the profile.
	Version           string   // Version of hinit.
	SkipPaths         []string // Paths in the home that belong to other profiles or to none. The archive omits them, and the head does not mention them.
	ScratchDir        string   // Absolute path of the directory for the snapshot; "" means the home.
	IncludeSecrets    bool     // Include files that contain secrets.
	ForClone          bool     // Omit identities such as bot tokens, because two profiles must not share them.
	AllowOutsideLinks bool     // Include symbolic links that lead out of the profile.
	// HomeIdle says that no process writes to the home. Then Run sends the files of the home itself, without a snapshot. In this
	// case Snapshot is the Head.Snapshot of an interrupted archive. If the home has changed since then, Run ignores Offset and
	// sends the whole archive.
	HomeIdle     bool
	KeepSnapshot bool   // Keep the snapshot after Run.
	Snapshot     string // Name of a kept snapshot to send; "" makes a new one (with HomeIdle, see above).
	Offset       int64  // Offset in the archive at which to begin, to continue an interrupted transfer.

	// Backup copies the SQLite database name from one directory to the other. An agent may change the home at the same time, so
	// Backup must not follow links out of the two directories. It must return soon after the end of ctx, even if an agent blocks
	// the copy.
	Backup         func(ctx context.Context, from, to *os.File, name string) error
	StopGateway    func() error     // Called before the second pass, so that later passes find few changes; may be nil.
	RestartGateway func() error     // Called after the last pass; the gateway may run again; may be nil.
	BeforeSend     func(from int64) // Called with HomeIdle before the first byte is sent. from is its offset in the archive; may be nil.
}

// Run makes the archive and writes it to out. It returns the head and the checksum of the archive. If a write to out fails, Run
// keeps the snapshot, so that a later Run can send the rest; kept reports whether the snapshot still exists. When ctx ends, Run
// stops with an error.
//
// An agent may put links into its home at any time. So Run resolves all names relative to open directories, and follows no link
// out of them.
func (x *Export) Run(ctx context.Context, out io.Writer) (head Head, sum string, kept bool, err error) {
	home, err := os.OpenRoot(x.Home) // The open directory stays the same if the home is renamed.
	if err != nil {
		return head, "", false, err
	}
	defer home.Close()
	if x.HomeIdle {
		head, sum, err = x.sendIdleHome(ctx, home, out)
		return head, sum, false, err
	}
	at := home
	if x.ScratchDir != "" {
		if at, err = os.OpenRoot(x.ScratchDir); err != nil {
			return head, "", false, err
		}
		defer at.Close()
	}
	base, dir, err := x.openSnapshot(at)
	if err != nil {
		return head, "", false, err
	}
	defer base.Close()
	defer dir.Close()
	files, err := openNoLink(dir.Root, filesDir)
	if err == nil {
		defer files.Close()
		if x.Snapshot == "" {
			err = x.copyHome(ctx, home, dir, files)
		}
	}
	snapshotTaken := err == nil || x.Snapshot != ""
	if err == nil {
		head, sum, err = x.sendSnapshot(ctx, dir, files, out)
	}
	kept = snapshotTaken && (x.KeepSnapshot || err != nil) && !x.ForClone
	if !kept {
		err = errors.Join(err, base.RemoveAll(dir.name))
		_ = at.Remove(stagingDir) // Remove fails if the directory contains other snapshots.
	}
	return head, sum, kept, err
}

// openSnapshot returns the locked directory for the snapshot as dir, and its parent, stagingDir in at, as base. If x.Snapshot is
// set, dir is the directory of that kept snapshot, and otherwise a new directory.
func (x *Export) openSnapshot(at *os.Root) (base, dir *directory, err error) {
	if x.Snapshot != "" {
		if base, err = openNoLink(at, stagingDir); err == nil {
			dir, err = openLocked(base.Root, filepath.Base(x.Snapshot))
		}
		return base, dir, err
	}
	for try := 0; try < 10 && dir == nil; try++ { // Another export may remove the new directory before it is locked, so try again.
		if err = at.Mkdir(stagingDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			break
		}
		if base, err = openNoLink(at, stagingDir); err != nil {
			continue
		}
		base.removeUnused()
		name := rand.Text()[:12]
		if err = base.MkdirAll(name+"/"+filesDir, 0o700); err == nil {
			dir, err = openLocked(base.Root, name)
		}
		if err != nil {
			_ = base.Close()
		}
	}
	if errors.Is(err, unix.EROFS) {
		err = fmt.Errorf("%w; name a directory for the copy with --scratch", err)
	}
	return base, dir, err
}

// sendSnapshot writes a snapshot as an archive to out. dir is the directory of the snapshot, which contains the head. files
// contains the copied files.
func (x *Export) sendSnapshot(ctx context.Context, dir, files *directory, out io.Writer) (head Head, sum string, err error) {
	f, _, err := openFile(dir.Root, headName)
	if err != nil {
		return head, "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxHead))
	if err = cmp.Or(err, json.Unmarshal(text, &head)); err == nil {
		sum, err = x.write(ctx, text, files.Root, out)
	}
	return head, sum, err
}

// sendIdleHome writes an archive directly from the files of an idle home. An unchanged home gives the same bytes, so an
// interrupted transfer can continue. Head.Snapshot is a hash of the names and times in the order of the file system. If this
// order changes, the whole archive is sent again.
func (x *Export) sendIdleHome(ctx context.Context, files *os.Root, out io.Writer) (head Head, sum string, err error) {
	head = Head{Format: formatVersion, Profile: x.Name, Hinit: x.Version, Moment: Consistent, Secrets: x.IncludeSecrets, Clone: x.ForClone, LeftOut: make(map[string]NameList)}
	content := sha256.New()
	var st unix.Statfs_t
	_ = unix.Statfs(x.Home, &st) // After an error, st is zero, and the size is not checked.
	err = x.eachFile(ctx, files, ".", head.recordLeftOut, func(rel, target string, info fs.FileInfo) error {
		fmt.Fprintf(content, "%q %q %d %d %d\n", rel, target, info.Size(), info.ModTime().UnixNano(), changedAt(info).UnixNano())
		head.count(info)
		if all := st.Blocks * uint64(max(st.Bsize, st.Frsize)); all > 0 && uint64(head.Bytes) > all {
			return fmt.Errorf("%q seems to have %d bytes, and with the files before it more than the volume: remove what is sparse, compressed or shared (du --apparent-size), or enlarge the volume", rel, info.Size())
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
		x.Offset = 0
	}
	if x.BeforeSend != nil {
		x.BeforeSend(x.Offset)
	}
	sum, err = x.write(ctx, text, files, out)
	return head, sum, err
}

// write writes an archive to out, from the offset x.Offset on. head is the encoded head, and files has the files. It returns the
// checksum of the whole archive.
func (x *Export) write(ctx context.Context, head []byte, files *os.Root, out io.Writer) (sum string, err error) {
	w, all := tar.NewWriter(&skipWriter{out, x.Offset}), newSums(head)
	err = writeTarEntry(w, &tar.Header{Name: headName, Mode: 0o600, Size: int64(len(head))}, bytes.NewReader(head))
	if f, is := out.(interface{ Flush() }); is { // Send the head now, so that the receiver can refuse the archive before the first file.
		f.Flush()
	}
	if err == nil {
		err = x.eachFile(ctx, files, ".", func(string, string) {}, func(rel, target string, info fs.FileInfo) error {
			return packFile(ctx, w, files, rel, target, info, all)
		})
	}
	if err == nil {
		sum = all.text()
		err = writeTarEntry(w, &tar.Header{Name: sumsName, Mode: 0o600, Size: int64(len(sum))}, bytes.NewReader([]byte(sum)))
	}
	return sum, cmp.Or(err, w.Close()) // Close returns an earlier write error again.
}

// eachFile calls do for each file below dir that belongs in the archive, in the order of the archive. files is the top of the
// home or snapshot. If do returns fs.SkipDir for a directory, eachFile skips its content. With HomeIdle, eachFile also calls
// leave for each file that is left out for a reason.
func (x *Export) eachFile(ctx context.Context, files *os.Root, dir string, leave func(rel, why string), do func(rel, target string, info fs.FileInfo) error) error {
	return eachEntry(files, dir, func(rel string) error {
		info, target, err := lstat(files, rel)
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		if x.HomeIdle {
			why, skip := x.whyLeftOut(rel, target, info)
			if why != "" {
				leave(rel, why)
			}
			if skip || why != "" {
				return nil
			}
		}
		if err = do(rel, target, info); errors.Is(err, fs.SkipDir) {
			return nil
		} else if err != nil || !info.IsDir() {
			return err
		}
		return x.eachFile(ctx, files, rel, leave, do)
	})
}

// packFile adds a file, directory or link to the archive. It puts the SHA-256 of the file into the tar header, and adds the
// header to the checksum all.
func packFile(ctx context.Context, w *tar.Writer, files *os.Root, rel, target string, info fs.FileInfo, all checksum) error {
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	// Leave out the owner: on the importing host, this uid may be another user.
	*h = tar.Header{Typeflag: h.Typeflag, Name: filePrefix + rel, Linkname: target, Size: h.Size, Mode: h.Mode & 0o777, ModTime: h.ModTime, Format: tar.FormatPAX}
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	if h.Typeflag != tar.TypeReg {
		all.add(h)
		return w.WriteHeader(h)
	}
	f, _, err := openFile(files, rel)
	if err != nil {
		return err
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { _ = f.Close() })() // When ctx ends, the reads below fail.
	sum := sha256.New()
	if _, err = io.CopyN(sum, f, h.Size); err == nil { // Read only as many bytes as the header says: the file may grow without end.
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		h.PAXRecords = map[string]string{sumRecord: hex.EncodeToString(sum.Sum(nil))}
		all.add(h)
		err = writeTarEntry(w, h, f)
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%q has become shorter while it was sent", rel)
	}
	return err
}

func writeTarEntry(w *tar.Writer, h *tar.Header, content io.Reader) error {
	err := w.WriteHeader(h)
	if err == nil {
		_, err = io.CopyN(w, content, h.Size)
	}
	return err
}

// skipWriter drops the first skip bytes, and passes all later bytes to w.
type skipWriter struct {
	w    io.Writer
	skip int64
}

// Write implements io.Writer. It also counts the dropped bytes as written.
func (b *skipWriter) Write(p []byte) (int, error) {
	drop := min(b.skip, int64(len(p)))
	b.skip -= drop
	n, err := b.w.Write(p[drop:])
	return int(drop) + n, err
}
