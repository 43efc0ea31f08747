package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
)

const (
	format   = 1
	headName = "HEAD.json" // the first file of an archive
	sumsName = "SHA256"    // the last one
	within   = "profile/"  // before the names of the others
	// sumRecord has the SHA-256 of a file in its header. Other programs take it for an extended attribute.
	sumRecord = "SCHILY.xattr.user.sha256"

	mostHead  = 1 << 20
	mostNamed = 100 // of each kind, in a head
)

// Moments say whether the content of an archive is of one moment.
const (
	OneMoment   = "one moment"      // nothing changed between the last copies
	SomeMoments = "several moments" // files or databases changed until the end; the head names them
)

// Head is what an archive says of itself.
type Head struct {
	Format   int              `json:"hinit_profile_archive"`
	Profile  string           `json:"profile"`
	Snapshot string           `json:"snapshot"`
	Created  time.Time        `json:"created"`
	Hinit    string           `json:"hinit"`
	Moment   string           `json:"moment"`
	Secrets  bool             `json:"secrets"` // false: files with secrets were left out
	Clone    bool             `json:"clone"`   // identities were left out
	Files    int64            `json:"files"`   // with directories and links
	Bytes    int64            `json:"bytes"`
	Moved    Names            `json:"moved"`    // changed until the end, so of another moment than the rest
	Torn     Names            `json:"torn"`     // changed during each copy
	LeftOut  map[string]Names `json:"left_out"` // by the reason
}

// leave notes that a file is left out.
func (h *Head) leave(rel, why string) {
	names := h.LeftOut[why]
	names.add(strings.ToValidUTF8(rel, "?"))
	h.LeftOut[why] = names
}

// Names are the first of many names. The last one is "…" if there are more.
type Names []string

func (n *Names) add(name string) {
	if len(*n) < mostNamed {
		*n = append(*n, name)
	} else {
		(*n)[mostNamed-1] = "…"
	}
}

// sums computes the checksum of an archive: the SHA-256 of its head and of what the header of each file says.
type sums struct{ hash.Hash }

func newSums(head []byte) sums {
	s := sums{sha256.New()}
	s.Write(head)
	return s
}

func (s sums) add(h *tar.Header) {
	fmt.Fprintf(s, "%q %c %o %d %d %q %s\n", h.Name, h.Typeflag, h.Mode, h.Size, h.ModTime.UnixNano(), h.Linkname, h.PAXRecords[sumRecord])
}

func (s sums) text() string { return hex.EncodeToString(s.Sum(nil)) }

// check refuses files that no export makes: names that leave the profile, bits that give rights, the state of a gateway. It
// returns the name in the profile. With links, a link may lead out of the profile.
func check(h *tar.Header, links bool) (rel string, err error) {
	rel, is := strings.CutPrefix(strings.TrimSuffix(h.Name, "/"), within)
	switch {
	case !is || !fs.ValidPath(rel) || rel == ".":
		err = errors.New("its name is not possible")
	case rel == stagingDir || strings.HasPrefix(rel, stagingDir+"/") || slices.Contains(runtimeState, rel):
		err = errors.New("it is the state of a running gateway, which no archive has")
	case h.Mode&^0o777 != 0:
		err = fmt.Errorf("its mode %o gives rights", h.Mode)
	case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeSymlink:
		err = errors.New("it is neither a file nor a directory nor a symbolic link")
	case h.Typeflag == tar.TypeSymlink && !links && !stays(rel, h.Linkname):
		err = errors.New("the link leads out of the profile")
	}
	return rel, err
}

// stays reports whether a link leads to a place in the profile. It may go up only at its beginning: there all directories are real.
func stays(at, target string) bool {
	rest := target
	for strings.HasPrefix(rest, "../") {
		rest = rest[len("../"):]
	}
	up := (len(target) - len(rest)) / len("../")
	return rest != "" && !strings.HasPrefix(rest, "/") && !slices.Contains(strings.Split(rest, "/"), "..") && up <= strings.Count(at, "/")
}

func sumOf(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), err
}
