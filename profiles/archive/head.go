package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"slices"
	"strings"
	"time"
)

const (
	formatVersion = 1
	headName      = "HEAD.json" // Name of the first file in an archive.
	sumsName      = "SHA256"    // Name of the last file in an archive.
	filePrefix    = "profile/"  // Prefix for the names of the profile's files in an archive.
	// sumRecord is the PAX record in a tar header with the SHA-256 of the file. tar and other programs show it as an extended
	// attribute.
	sumRecord = "SCHILY.xattr.user.sha256"

	maxHead        = 1 << 20
	maxListedNames = 100      // Maximum number of names in each list of a head.
	maxListBytes   = 10 << 10 // Maximum total length of the names in a list, in bytes, so that all lists fit into maxHead.
)

// The values of Head.Moment, which says whether the archive shows all files as they were at one moment.
const (
	Consistent   = "one moment"      // No file changed during the last pass of the export.
	Inconsistent = "several moments" // Some files changed during the last pass; Head.Moved names them.
)

// Head is the first file of an archive, which describes the archive.
type Head struct {
	Format   int                 `json:"hinit_profile_archive"`
	Profile  string              `json:"profile"`
	Snapshot string              `json:"snapshot"`
	Created  time.Time           `json:"created"`
	Hinit    string              `json:"hinit"`
	Moment   string              `json:"moment"`
	Secrets  bool                `json:"secrets"` // Whether the archive includes files with secrets.
	Clone    bool                `json:"clone"`   // Whether the archive is for a second profile, and so omits identities such as bot tokens.
	Files    int64               `json:"files"`   // Number of files, directories and links.
	Bytes    int64               `json:"bytes"`
	Moved    NameList            `json:"moved"`    // Files that changed during the last pass.
	Torn     NameList            `json:"torn"`     // Files that changed while they were copied.
	LeftOut  map[string]NameList `json:"left_out"` // Omitted files, by the reason.
}

// recordLeftOut records in the head that the file rel was left out, and why.
func (h *Head) recordLeftOut(rel, why string) {
	names := h.LeftOut[why]
	names.add(strings.ToValidUTF8(rel, "?"))
	h.LeftOut[why] = names
}

// count adds a file to the numbers of files and bytes in the head.
func (h *Head) count(info fs.FileInfo) {
	h.Files++
	if info.Mode().IsRegular() {
		h.Bytes += info.Size()
	}
}

// NameList is a list of at most maxListedNames names. "…" at the end stands for further names.
type NameList []string

func (n *NameList) add(name string) {
	if slices.Contains(*n, "…") {
		return
	}
	if len(*n) == maxListedNames || len(strings.Join(*n, ""))+len(name) > maxListBytes {
		name = "…"
	}
	*n = append(*n, name)
}

// checksum computes the checksum of an archive. It is the SHA-256 of the head and of all tar headers, which contain the checksums of
// the files.
type checksum struct{ hash.Hash }

func newSums(head []byte) checksum {
	s := checksum{sha256.New()}
	s.Write(head)
	return s
}

func (s checksum) add(h *tar.Header) {
	fmt.Fprintf(s, "%q %c %o %d %d %q %s\n", h.Name, h.Typeflag, h.Mode, h.Size, h.ModTime.UnixNano(), h.Linkname, h.PAXRecords[sumRecord])
}

func (s checksum) text() string { return hex.EncodeToString(s.Sum(nil)) }

// checkTarHeader returns the path, within the profile, of the file with the tar header h. It refuses headers that an export never
// writes, for example with a name outside the profile or with a setuid bit. If links is true, symbolic links may lead out of the
// profile.
func checkTarHeader(h *tar.Header, links bool) (rel string, err error) {
	rel, is := strings.CutPrefix(strings.TrimSuffix(h.Name, "/"), filePrefix)
	switch {
	case !is || !fs.ValidPath(rel) || rel == ".":
		err = errors.New("its name is not valid")
	case rel == stagingDir || strings.HasPrefix(rel, stagingDir+"/") || slices.Contains(runtimeState, rel):
		err = errors.New("it is the state of a running gateway, which an archive never has")
	case h.Mode&^0o777 != 0:
		err = fmt.Errorf("its mode %o has a setuid, setgid or sticky bit", h.Mode)
	case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeSymlink:
		err = errors.New("it is neither a file nor a directory nor a symbolic link")
	case h.Typeflag == tar.TypeSymlink && !links && !staysInProfile(rel, h.Linkname):
		err = errors.New("the link leads out of the profile")
	}
	return rel, err
}

// staysInProfile reports whether the symbolic link at, whose content is target, leads to a path within the profile. target may
// contain ".." only at its beginning. There, ".." leads through directories that are not links; after another name it might
// follow a link.
func staysInProfile(at, target string) bool {
	rest := target
	for strings.HasPrefix(rest, "../") {
		rest = rest[len("../"):]
	}
	up := (len(target) - len(rest)) / len("../")
	return rest != "" && !strings.HasPrefix(rest, "/") && !slices.Contains(strings.Split(rest, "/"), "..") && up <= strings.Count(at, "/")
}
