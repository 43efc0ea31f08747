package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/internal/fsutil"
)

// The limits of looking at a step's inputs. A step with more runs each time.
const (
	maxInputFiles = 20_000
	inputTime     = 3 * time.Second
)

var errUnsure = errors.New("it cannot be told whether it has changed")

// source reads metadata of inputs, on the data volume or elsewhere.
type source interface {
	lstat(rel string) (fs.FileInfo, error)
	list(rel string) ([]fs.DirEntry, error)
}

// volumeSource reads the data directory and follows no link: the agent can change links at any time. It keeps the last directory
// open.
type volumeSource struct {
	top, last *fsutil.Dir
	rel       string // of last
}

func (s *volumeSource) lstat(rel string) (fs.FileInfo, error) {
	dir, base := path.Split(rel)
	if s.last == nil || dir != s.rel {
		s.close()
		sub, err := s.top.Sub(dir)
		if err != nil {
			return nil, err
		}
		s.last, s.rel = sub, dir
	}
	return s.last.Lstat(base)
}

func (s *volumeSource) list(rel string) ([]fs.DirEntry, error) { return s.top.ReadDir(rel) }

func (s *volumeSource) close() {
	if s.last != nil {
		s.last.Close()
		s.last = nil
	}
}

// imageSource reads outside the data volume, by absolute paths. It follows links.
type imageSource struct{}

func (imageSource) lstat(rel string) (fs.FileInfo, error) {
	info, err := os.Stat("/" + rel)
	if errors.Is(err, fs.ErrNotExist) {
		if link, linkErr := os.Lstat("/" + rel); linkErr == nil {
			return link, nil // which leads nowhere
		}
	}
	return info, err
}

func (imageSource) list(rel string) ([]fs.DirEntry, error) { return os.ReadDir("/" + rel) }

// reader describes files without opening them. The first part is size and time of modification in seconds, which an image keeps
// when it is pulled. The second part is exact on this host: nanoseconds, the inode number, and in the image the time of change
// (ctime). On the volume each change of owner would change the ctime.
type reader struct {
	ctx   context.Context //nolint:containedctx // of one reading, which the reader is made for
	src   source
	sum   hash.Hash
	exact hash.Hash
	files int
	where string // directory of the names, for messages

	listed  string // the directory that was listed last; "**" comes back to it
	entries []fs.DirEntry
}

// list lists a directory, sorted by name.
func (r *reader) list(rel string) (entries []fs.DirEntry, err error) {
	if r.entries == nil || r.listed != rel {
		r.listed = rel
		r.entries, err = r.src.list(rel)
	}
	return r.entries, err
}

// digest returns hashes over everything that the patterns name in src: names, kinds, permissions, sizes, times, missing files,
// and the exact part of this host. It fails when that can't be told reliably.
func digest(ctx context.Context, src source, patterns []string, where string) (sum, exact string, err error) {
	r := &reader{ctx: ctx, src: src, sum: sha256.New(), exact: sha256.New(), where: where}
	for _, p := range patterns {
		r.note("pattern", p)
		if err := r.expand("", splitPattern(p)); err != nil {
			return "", "", err
		}
	}
	return hex.EncodeToString(r.sum.Sum(nil)), hex.EncodeToString(r.exact.Sum(nil)), nil
}

// note adds words to the hash unambiguously.
func (r *reader) note(words ...string) {
	for _, w := range words {
		_, _ = io.WriteString(r.sum, strconv.Itoa(len(w))+":"+w+",") // never fails, see package hash
	}
}

// noteFile adds a regular file.
func (r *reader) noteFile(rel string, info fs.FileInfo) {
	r.note("file", rel, info.Mode().Perm().String(), strconv.FormatInt(info.Size(), 10), strconv.FormatInt(info.ModTime().Unix(), 10))
	st := fsutil.Stat(info)
	fmt.Fprintln(r.exact, st.Mtim.Nano(), st.Ino)
	if _, image := r.src.(imageSource); image {
		fmt.Fprintln(r.exact, st.Ctim.Nano())
	}
}

func splitPattern(p string) []string {
	return strings.FieldsFunc(p, func(c rune) bool { return c == '/' })
}

// expand follows a pattern from the directory rel: a component is a name, a glob (path.Match), or "**" for any number of
// directories.
func (r *reader) expand(rel string, rest []string) error {
	if err := r.ctx.Err(); err != nil {
		return fmt.Errorf("%w: it took longer than %s", errUnsure, inputTime)
	}
	if len(rest) == 0 {
		return r.everything(rel)
	}
	name, rest := rest[0], rest[1:]
	if !strings.ContainsAny(name, "*?[") {
		return r.expand(path.Join(rel, name), rest)
	}
	info, err := r.src.lstat(rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return r.unsure(rel, err)
	}
	if !info.IsDir() {
		return r.odd(rel, info)
	}
	entries, err := r.list(rel)
	if err != nil {
		return r.unsure(rel, err)
	}
	if name == "**" {
		if err := r.expand(rel, rest); err != nil {
			return err
		}
	}
	for _, e := range entries { // sorted by name
		below := path.Join(rel, e.Name())
		if name == "**" {
			if !e.IsDir() {
				continue // a link to a directory is not gone into
			}
			if err := r.expand(below, append([]string{"**"}, rest...)); err != nil {
				return err
			}
			continue
		}
		if match, err := path.Match(name, e.Name()); err != nil || !match {
			continue
		}
		if err := r.expand(below, rest); err != nil {
			return err
		}
	}
	return nil
}

// everything adds rel, and the files in it.
func (r *reader) everything(rel string) error {
	if r.files++; r.files > maxInputFiles {
		return fmt.Errorf("%w: there are more than %d files", errUnsure, maxInputFiles)
	}
	if r.ctx.Err() != nil {
		return fmt.Errorf("%w: it took longer than %s", errUnsure, inputTime)
	}
	info, err := r.src.lstat(rel)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.note("missing", rel)
		return nil
	case err != nil:
		return r.unsure(rel, err)
	case info.IsDir():
		r.note("directory", rel, info.Mode().Perm().String())
		entries, err := r.list(rel)
		if err != nil {
			return r.unsure(rel, err)
		}
		for _, e := range entries {
			if e.Name() == "__pycache__" { // Python's cache
				continue
			}
			if err := r.everything(path.Join(rel, e.Name())); err != nil {
				return err
			}
		}
		return nil
	case info.Mode().IsRegular():
		r.noteFile(rel, info)
		return nil
	}
	return r.odd(rel, info)
}

func (r *reader) unsure(rel string, err error) error {
	return fmt.Errorf("%w: %s: %w", errUnsure, filepath.Join(r.where, rel), err)
}

// odd adds a file without content to compare: a link that leads elsewhere, a socket.
func (r *reader) odd(rel string, info fs.FileInfo) error {
	return fmt.Errorf("%w: %s is neither a file nor a directory (%s)", errUnsure, filepath.Join(r.where, rel), info.Mode().Type())
}

// divide splits inputs into those beneath the data directory, relative to it, names of variables, and the others.
func divide(home string, inputs []string) (volume, vars, image []string) {
	for _, p := range inputs {
		if name, is := strings.CutPrefix(p, "$"); is {
			vars = append(vars, name)
		} else if rel, beneath := strings.CutPrefix(p, home+"/"); beneath {
			volume = append(volume, rel)
		} else if p == home {
			volume = append(volume, "")
		} else {
			image = append(image, p)
		}
	}
	slices.Sort(volume)
	slices.Sort(image)
	return volume, vars, image
}

// overlap reports whether two patterns may name the same file.
func overlap(a, b string) bool {
	x, y := splitPattern(a), splitPattern(b)
	for i := range min(len(x), len(y)) {
		if strings.ContainsAny(x[i]+y[i], "*?[") {
			return true
		}
		if x[i] != y[i] {
			return false
		}
	}
	return true // one is above the other
}

// sealedOn is the file system on which a look at each file of the image takes long: each is a message to a program (fuse(4)).
const sealedOn = "fuse.fuse-overlayfs"

// sealed returns the number that the build gave to the image if nothing beneath o.Image.Install has changed since; else "". mounts is the
// table of mounts (proc(5), mountinfo).
//
// The build makes the file o.Image.Seal last. On an overlay a change anywhere beneath a directory makes the directory anew in the layer
// of the change. So it is younger than the seal (ctime). A mount beneath it is in the table. On other file systems, or if layers
// may be written in another order, every file is looked at.
func (o Options) sealed(mounts string) string {
	on := ""
	for line := range strings.Lines(mounts) {
		mount, super, _ := strings.Cut(line, " - ")
		of, at := strings.Fields(super), strings.Fields(mount)
		if len(of) == 0 || len(at) < 5 {
			return ""
		}
		switch point := at[4]; { // a blank in it is \040, and so in no name that matters here
		case point == "/":
			on = of[0]
		case beneath(point, o.Image.Install), beneath(o.Image.Install, point), beneath(o.Image.Seal, point):
			return ""
		}
	}
	install, err := os.Lstat(o.Image.Install)
	if err != nil || !install.IsDir() || on != sealedOn {
		return ""
	}
	seal, err := os.Lstat(o.Image.Seal)
	if err != nil || fsutil.Stat(install).Ctim.Nano() > fsutil.Stat(seal).Ctim.Nano() {
		return ""
	}
	number, _ := os.ReadFile(o.Image.Seal) // without it, every file is looked at
	return string(number)
}

// beneath reports whether a path is dir or in it.
func beneath(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

func mounts() string {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	return string(text)
}
