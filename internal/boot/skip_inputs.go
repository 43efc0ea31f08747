package boot

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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// The limits of reading a step's inputs. A step with more runs each time.
const (
	maxInputFiles = 20_000
	maxInputBytes = 256 << 20
	maxVolumeFile = 16 << 20 // it is read into memory
	inputTime     = 3 * time.Second
)

var errUnsure = errors.New("it cannot be told whether it has changed")

// source reads inputs from the data volume, or from everywhere else.
type source interface {
	lstat(rel string) (fs.FileInfo, error)
	list(rel string) ([]fs.DirEntry, error)
	// content returns the hash and length of a regular file.
	content(rel string) (sum [sha256.Size]byte, length int64, err error)
}

// volumeSource reads the data directory and follows no link: the agent can change links at any time.
type volumeSource struct{ dir *fsutil.Dir }

func (s volumeSource) lstat(rel string) (fs.FileInfo, error)  { return s.dir.Lstat(rel) }
func (s volumeSource) list(rel string) ([]fs.DirEntry, error) { return s.dir.ReadDir(rel) }

func (s volumeSource) content(rel string) (sum [sha256.Size]byte, length int64, err error) {
	data, err := s.dir.ReadFile(rel, maxVolumeFile)
	return sha256.Sum256(data), int64(len(data)), err
}

// imageSource reads outside the data volume, by absolute paths. It follows links.
type imageSource struct{ buffer []byte }

func newImageSource() *imageSource { return &imageSource{make([]byte, 256<<10)} }

func (*imageSource) lstat(rel string) (fs.FileInfo, error) {
	info, err := os.Stat("/" + rel)
	if errors.Is(err, fs.ErrNotExist) {
		if link, linkErr := os.Lstat("/" + rel); linkErr == nil {
			return link, nil // which leads nowhere
		}
	}
	return info, err
}

func (*imageSource) list(rel string) ([]fs.DirEntry, error) { return os.ReadDir("/" + rel) }

func (s *imageSource) content(rel string) (sum [sha256.Size]byte, length int64, err error) {
	f, err := os.OpenFile("/"+rel, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return sum, 0, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return sum, 0, errors.Join(err, errUnsure)
	}
	h := sha256.New()
	for err == nil && length <= maxInputBytes {
		var n int
		n, err = f.Read(s.buffer)
		h.Write(s.buffer[:n])
		length += int64(n)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	h.Sum(sum[:0])
	return sum, length, err
}

type reader struct {
	ctx   context.Context //nolint:containedctx // of one reading, which the reader is made for
	src   source
	sum   hash.Hash
	files int
	bytes int64
	where string // what the names are relative to, for messages
}

// digest returns a hash over everything that the patterns name in src: names, kinds, permissions, content and missing files. It
// fails when the inputs can't be read reliably.
func digest(ctx context.Context, src source, patterns []string, where string) (string, error) {
	r := &reader{ctx: ctx, src: src, sum: sha256.New(), where: where}
	for _, p := range patterns {
		r.note("pattern", p)
		if err := r.expand("", splitPattern(p)); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(r.sum.Sum(nil)), nil
}

// note adds words to the hash unambiguously.
func (r *reader) note(words ...string) {
	for _, w := range words {
		fmt.Fprintf(r.sum, "%d:%s,", len(w), w)
	}
	r.sum.Write([]byte{'\n'})
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
	entries, err := r.src.list(rel)
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

// everything adds what is at rel, and in it.
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
		entries, err := r.src.list(rel)
		if err != nil {
			return r.unsure(rel, err)
		}
		for _, e := range entries {
			if err := r.everything(path.Join(rel, e.Name())); err != nil {
				return err
			}
		}
		return nil
	case info.Mode().IsRegular():
		sum, n, err := r.src.content(rel)
		if err != nil {
			return r.unsure(rel, err)
		}
		if r.bytes += n; r.bytes > maxInputBytes {
			return fmt.Errorf("%w: there are more than %d bytes", errUnsure, maxInputBytes)
		}
		r.note("file", rel, info.Mode().Perm().String(), string(sum[:]))
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

// divide splits inputs into those beneath the data directory, relative to it, and the others.
func divide(home string, inputs []string) (volume, image []string) {
	for _, p := range inputs {
		if rel, beneath := strings.CutPrefix(p, home+"/"); beneath {
			volume = append(volume, rel)
		} else if p == home {
			volume = append(volume, "")
		} else {
			image = append(image, p)
		}
	}
	slices.Sort(volume)
	slices.Sort(image)
	return volume, image
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
