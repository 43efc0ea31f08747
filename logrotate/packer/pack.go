// Package packer compresses the archives (the rotated files) of logs. It implements [gzipped.Packer]. PID 1 runs it in a separate
// process.
//
// An archive always exists in at least one of its two forms, compressed or uncompressed, even after a crash. The compressed file
// gets its name only when it is complete, and then the original is removed. PID 1 may prune archives at the same time, without a
// lock. If it prunes the original during the compression, the compressed file is removed too. Compressing takes at most a quarter
// of a core. The package owns no goroutine.
package packer

import (
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/faultinject"
	"hinit/internal/fsutil"
	"hinit/internal/pause"
	"hinit/logrotate/archive"
	"hinit/logrotate/gzipped"
)

const (
	// packChunk is the number of bytes that are compressed at a time. After each chunk the packer sleeps packPauseFactor times as
	// long as the chunk took, so it uses at most a quarter of a core. A low thread priority would not help: it would slow down
	// the Go runtime too.
	packChunk       = 64 << 10
	packPauseFactor = 3
	// maxAtOnce is the number of archives of one log that a call of Pack compresses. An agent can make any number of
	// archives, and other logs must not wait for all of them.
	maxAtOnce = 10
)

// errAbandoned means that an archive stays uncompressed, because it was removed or is too large, or because the context has
// ended. The caller does not report it.
var errAbandoned = errors.New("abandoned")

// Pack compresses the archives of logs, and opens files with the identity of actor. It skips archives whose rotation is less
// than young ago. It returns one result for each log, in the same order, and stops when ctx ends.
func Pack(ctx context.Context, actor *fsutil.Actor, logs []gzipped.Archives, young time.Duration) []gzipped.Result {
	p := &packer{actor: actor.WithPool(blocking.Logs), maxAge: young}
	results := make([]gzipped.Result, len(logs))
	for i, l := range logs {
		results[i] = p.packLog(ctx, l)
	}
	return results
}

// packer is the state of one call of Pack.
type packer struct {
	actor  *fsutil.Actor // Identity that opens the files; blocking.Logs limits its concurrent file operations.
	maxAge time.Duration
	gzip   *gzip.Writer // Writer that is reused for every archive.
	buf    []byte
}

// packLog compresses the archives of one log, oldest first. It stops at the first error, and after maxAtOnce archives.
func (p *packer) packLog(ctx context.Context, l gzipped.Archives) (r gzipped.Result) {
	dir := archive.Dir{Path: l.Dir, Actor: p.actor}
	names, err := dir.Names()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	packed := 0
	for _, name := range names {
		if strings.HasSuffix(name, archive.PackedSuffix) {
			continue
		}
		if ctx.Err() != nil || packed == maxAtOnce {
			r.CallAgain = true
			return r
		}
		// If the clock was set back, an archive may have a time far in the future. Only the distance from now decides, so
		// that such an archive does not count as young until then.
		if t, _ := archive.RotationTime(name); time.Since(t).Abs() < p.maxAge {
			r.CallAgain = true
			continue
		}
		if err = p.packArchive(ctx, dir, name, l.MaxSize); err == nil {
			packed++
		} else if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errAbandoned) {
			err = nil // During the compression, the archive was pruned or its packing was abandoned.
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// packArchive compresses one archive, unless it has more than limit bytes.
func (p *packer) packArchive(ctx context.Context, dir archive.Dir, name string, limit int64) error {
	return dir.WithParent(func(parent *fsutil.Dir, sub string) error {
		from := filepath.Join(sub, name)
		whole := from + archive.PackedSuffix
		part := whole + archive.PartialSuffix
		in, err := parent.Open(from)
		if err != nil {
			return err
		}
		defer in.Close()
		st, err := blocking.Get(blocking.Logs, in.Stat)
		if err != nil {
			return err
		}
		if st.Size() > limit {
			return errAbandoned
		}
		// A killed packer may have left this file.
		if err := parent.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		out, err := parent.OpenAppend(part, 0o644)
		if err != nil {
			return err
		}
		err = p.compressFile(ctx, in, out, st)
		if err = errors.Join(err, doWithLogTurn(out.Close)); err != nil {
			_ = parent.Remove(part) // The next call of Pack tries again.
			return err
		}
		if err := parent.Rename(part, whole); err != nil {
			return err
		}
		// The compressed file must be on the disk before the original is removed. Some file systems can't sync a name; then a crash
		// of the machine may lose the archive.
		_ = parent.SyncParentDir(whole)
		err = parent.Remove(from)
		if errors.Is(err, fs.ErrNotExist) { // The archive was pruned during the compression.
			_ = parent.Remove(whole)
			return errAbandoned
		}
		return err
	})
}

// doWithLogTurn makes one file operation when a turn of [blocking.Logs] is free.
func doWithLogTurn(do func() error) error { return blocking.Do(blocking.Logs, do) }

// compressFile compresses the file in, whose status is st, into the file out, and syncs out.
func (p *packer) compressFile(ctx context.Context, in, out *os.File, st os.FileInfo) error {
	if p.gzip == nil {
		p.gzip, p.buf = gzip.NewWriter(out), make([]byte, packChunk)
	}
	p.gzip.Reset(out)
	p.gzip.Extra, p.gzip.ModTime = OriginField(st), st.ModTime()
	for {
		begin := time.Now()
		err := doWithLogTurn(func() error { return p.compressChunk(in, out) })
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !pause.For(ctx, packPauseFactor*time.Since(begin)) {
			return errAbandoned
		}
	}
	return doWithLogTurn(func() error {
		if err := p.gzip.Close(); err != nil {
			return err
		}
		return faultinject.RunCall(faultinject.CallSync, out.Name(), out.Sync)
	})
}

// compressChunk compresses the next packChunk bytes of in. If in was removed, it returns errAbandoned.
func (p *packer) compressChunk(in, out *os.File) error {
	if st, err := in.Stat(); err != nil || fsutil.Stat(st).Nlink == 0 {
		return errors.Join(err, errAbandoned)
	}
	n, err := in.Read(p.buf)
	if err != nil {
		return err
	}
	if err := faultinject.BeforeCall(faultinject.CallWrite, out.Name()); err != nil {
		return err
	}
	_, err = p.gzip.Write(p.buf[:n])
	return err
}

// originFieldHeader begins the field in the gzip header (RFC 1952, section 2.3.1.1) that identifies the original file: ID and
// length. A reader that follows the log may still have the original open. By this field it recognises the compressed form, and
// doesn't read the lines twice.
var originFieldHeader = []byte{'h', 'i', 16, 0}

// OriginField returns the gzip header field with the device and inode of st, the status of the original file.
func OriginField(st os.FileInfo) []byte {
	sys := fsutil.Stat(st)
	b := binary.LittleEndian.AppendUint64(slices.Clip(originFieldHeader), sys.Dev)
	return binary.LittleEndian.AppendUint64(b, sys.Ino)
}
