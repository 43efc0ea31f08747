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

// Limits for reading the inputs of a boot step, the files on which it depends. A step with more inputs runs at every boot.
const (
	maxInputFiles     = 20_000
	hashInputsTimeout = 3 * time.Second
)

var errChangeUnknown = errors.New("it cannot be told whether it has changed")

// source reads the metadata of input files, on the data volume or in the image.
type source interface {
	lstat(rel string) (fs.FileInfo, error)
	list(rel string) ([]fs.DirEntry, error)
}

// volumeSource reads inputs in the data directory. It follows no link, because the agent can change links at any time. It
// leaves the last directory open for the next file.
type volumeSource struct {
	top, last *fsutil.Dir
	rel       string // path of the open directory
}

func (s *volumeSource) lstat(rel string) (fs.FileInfo, error) {
	dir, base := path.Split(rel)
	if s.last == nil || dir != s.rel {
		s.close()
		sub, err := s.top.OpenSubdir(dir)
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

// imageSource reads inputs outside of the data volume, by absolute paths without the leading slash. It follows links.
type imageSource struct{}

func (imageSource) lstat(rel string) (fs.FileInfo, error) {
	info, err := os.Stat("/" + rel)
	if errors.Is(err, fs.ErrNotExist) {
		if link, linkErr := os.Lstat("/" + rel); linkErr == nil {
			return link, nil
		}
	}
	return info, err
}

func (imageSource) list(rel string) ([]fs.DirEntry, error) { return os.ReadDir("/" + rel) }

// inputHasher hashes the metadata of input files into two hashes, without opening the files. sum covers the size and the
// modification time in whole seconds, which stay the same when an image is pulled. exact is valid only on this host. It also
// covers nanoseconds and the inode number, and for files of the image the ctime. It leaves out the ctime on the volume, which a
// change of owner changes.
type inputHasher struct {
	ctx     context.Context //nolint:containedctx // context of this reading only
	src     source
	sum     hash.Hash
	exact   hash.Hash
	files   int
	baseDir string // names in messages are relative to this directory

	lastListedDir string // directory that was listed last; the pattern "**" lists it again
	entries       []fs.DirEntry
}

// list lists the directory rel, sorted by name.
func (r *inputHasher) list(rel string) (entries []fs.DirEntry, err error) {
	if r.entries == nil || r.lastListedDir != rel {
		r.lastListedDir = rel
		r.entries, err = r.src.list(rel)
	}
	return r.entries, err
}

// hashInputs returns the two hashes of inputHasher over all files in src that match a pattern. The hashes cover names, types,
// permissions, sizes and times. A missing file changes the hashes too. Names in messages are relative to baseDir. If a file
// can't be read reliably, hashInputs returns an error.
func hashInputs(ctx context.Context, src source, patterns []string, baseDir string) (sum, exact string, err error) {
	r := &inputHasher{ctx: ctx, src: src, sum: sha256.New(), exact: sha256.New(), baseDir: baseDir}
	for _, p := range patterns {
		r.addWords("pattern", p)
		if err := r.matchPattern("", splitPattern(p)); err != nil {
			return "", "", err
		}
	}
	return hex.EncodeToString(r.sum.Sum(nil)), hex.EncodeToString(r.exact.Sum(nil)), nil
}

// addWords adds words and their lengths to the hash sum. Without the lengths, the lists "ab", "c" and "a", "bc" would have the
// same hash.
func (r *inputHasher) addWords(words ...string) {
	for _, w := range words {
		_, _ = io.WriteString(r.sum, strconv.Itoa(len(w))+":"+w+",") // never fails, see package hash
	}
}

// addFile adds the metadata of a regular file to both hashes.
func (r *inputHasher) addFile(rel string, info fs.FileInfo) {
	r.addWords("file", rel, info.Mode().Perm().String(), strconv.FormatInt(info.Size(), 10), strconv.FormatInt(info.ModTime().Unix(), 10))
	st := fsutil.Stat(info)
	fmt.Fprintln(r.exact, st.Mtim.Nano(), st.Ino)
	if _, image := r.src.(imageSource); image {
		fmt.Fprintln(r.exact, st.Ctim.Nano())
	}
}

func splitPattern(p string) []string {
	return strings.FieldsFunc(p, func(c rune) bool { return c == '/' })
}

// matchPattern adds all files below the directory rel that match rest, the remaining components of a pattern. A component is a
// name, a glob (path.Match), or "**" for any number of directories.
func (r *inputHasher) matchPattern(rel string, rest []string) error {
	if err := r.ctx.Err(); err != nil {
		return fmt.Errorf("%w: it took longer than %s", errChangeUnknown, hashInputsTimeout)
	}
	if len(rest) == 0 {
		return r.addTree(rel)
	}
	name, rest := rest[0], rest[1:]
	if !strings.ContainsAny(name, "*?[") {
		return r.matchPattern(path.Join(rel, name), rest)
	}
	info, err := r.src.lstat(rel)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return r.readError(rel, err)
	}
	if !info.IsDir() {
		return r.wrongTypeError(rel, info)
	}
	entries, err := r.list(rel)
	if err != nil {
		return r.readError(rel, err)
	}
	if name == "**" {
		if err := r.matchPattern(rel, rest); err != nil {
			return err
		}
	}
	for _, e := range entries {
		matches, err := path.Match(name, e.Name())
		below := rest
		if name == "**" {
			matches, below = e.IsDir(), append([]string{name}, rest...) // skip links to directories
		}
		if err == nil && matches {
			if err := r.matchPattern(path.Join(rel, e.Name()), below); err != nil {
				return err
			}
		}
	}
	return nil
}

// addTree adds the file rel, or the directory rel with all that is in it.
func (r *inputHasher) addTree(rel string) error {
	if r.files++; r.files > maxInputFiles {
		return fmt.Errorf("%w: there are more than %d files", errChangeUnknown, maxInputFiles)
	}
	if r.ctx.Err() != nil {
		return fmt.Errorf("%w: it took longer than %s", errChangeUnknown, hashInputsTimeout)
	}
	info, err := r.src.lstat(rel)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.addWords("missing", rel)
		return nil
	case err != nil:
		return r.readError(rel, err)
	case info.IsDir():
		r.addWords("directory", rel, info.Mode().Perm().String())
		entries, err := r.list(rel)
		if err != nil {
			return r.readError(rel, err)
		}
		for _, e := range entries {
			if e.Name() != "__pycache__" {
				if err := r.addTree(path.Join(rel, e.Name())); err != nil {
					return err
				}
			}
		}
		return nil
	case info.Mode().IsRegular():
		r.addFile(rel, info)
		return nil
	}
	return r.wrongTypeError(rel, info)
}

func (r *inputHasher) readError(rel string, err error) error {
	return fmt.Errorf("%w: %s: %w", errChangeUnknown, filepath.Join(r.baseDir, rel), err)
}

// wrongTypeError returns the error for an input that can't be compared because of its type, such as a socket or a link.
func (r *inputHasher) wrongTypeError(rel string, info fs.FileInfo) error {
	return fmt.Errorf("%w: %s is neither a file nor a directory (%s)", errChangeUnknown, filepath.Join(r.baseDir, rel), info.Mode().Type())
}

// splitInputs divides the inputs of a step. volume has the paths below the data directory home, relative to home. vars has the
// names of environment variables, and image has all other paths.
func splitInputs(home string, inputs []string) (volume, vars, image []string) {
	for _, p := range inputs {
		if name, is := strings.CutPrefix(p, "$"); is {
			vars = append(vars, name)
		} else if rel, beneath := strings.CutPrefix(p+"/", home+"/"); beneath {
			volume = append(volume, strings.TrimSuffix(rel, "/"))
		} else {
			image = append(image, p)
		}
	}
	slices.Sort(volume)
	slices.Sort(image)
	return volume, vars, image
}

// patternsOverlap reports whether a file may match both patterns.
func patternsOverlap(a, b string) bool {
	x, y := splitPattern(a), splitPattern(b)
	for i := range min(len(x), len(y)) {
		if strings.ContainsAny(x[i]+y[i], "*?[") {
			return true
		}
		if x[i] != y[i] {
			return false
		}
	}
	return true
}

// fuseOverlayType is a type of file system on which the examination of every file of the image takes long. Each file needs a
// message to a program (fuse(4)).
const fuseOverlayType = "fuse.fuse-overlayfs"

// sealNumber returns the build number of the image if no file below o.Image.Install has changed since the build, so that these
// files need no examination. Otherwise it returns "". mounts is the content of /proc/self/mountinfo (proc(5)).
//
// The build creates the file o.Image.Seal last. On an overlay file system, a change below a directory creates the directory
// again in the layer of the change. So the ctime of the directory is later than the ctime of the seal. A mount could hide such
// a change. On other file systems than fuseOverlayType, sealNumber returns "".
func (o Options) sealNumber(mounts string) string {
	on := ""
	for line := range strings.Lines(mounts) {
		mount, super, _ := strings.Cut(line, " - ")
		of, at := strings.Fields(super), strings.Fields(mount)
		if len(of) == 0 || len(at) < 5 {
			return ""
		}
		switch point := at[4]; { // mountinfo shows a blank as \040, but none of these paths has a blank
		case point == "/":
			on = of[0]
		case isWithin(point, o.Image.Install), isWithin(o.Image.Install, point), isWithin(o.Image.Seal, point):
			return ""
		}
	}
	install, err := os.Lstat(o.Image.Install)
	if err != nil || !install.IsDir() || on != fuseOverlayType {
		return ""
	}
	seal, err := os.Lstat(o.Image.Seal)
	if err != nil || fsutil.Stat(install).Ctim.Nano() > fsutil.Stat(seal).Ctim.Nano() {
		return ""
	}
	number, _ := os.ReadFile(o.Image.Seal)
	return string(number)
}

func isWithin(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}
