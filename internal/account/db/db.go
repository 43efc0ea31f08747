// Package db changes users and groups in /etc/passwd and /etc/group.
//
// It is separate from package account because the exec shim links account and must stay small. It does not run usermod or another
// program of the image, because the image may have none. Instead it reads a whole file, changes it in memory, and replaces it
// atomically: even after a crash, readers see the old or the new file. All other lines stay unchanged, including comments and
// invalid lines. The files /etc/shadow and /etc/gshadow need no change, because they refer to names and not to ids.
//
// The package starts no goroutine and keeps no state outside of a [DB].
package db

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hinit/internal/account"
	"hinit/internal/fsutil"
)

// ErrTaken means that an id already belongs to another user, or that a name or an id already belongs to another group. Test
// for it with [errors.Is].
var ErrTaken = errors.New("taken")

// ErrNoEntry is the error if there is no such user or group. Test for it with [errors.Is].
var ErrNoEntry = errors.New("no such entry")

// DB holds the content of /etc/passwd and /etc/group. Changes stay in memory until [DB.Save] writes them. Two goroutines must not
// use a DB at the same time.
type DB struct {
	passwd, group *table
}

// Open reads root+"/etc/passwd" and root+"/etc/group". The argument root is "" for the files of this system. A missing file counts
// as empty. Open blocks on these files only.
func Open(root string) (*DB, error) {
	passwd, err := readTable(root + "/etc/passwd")
	if err != nil {
		return nil, err
	}
	group, err := readTable(root + "/etc/group")
	if err != nil {
		return nil, err
	}
	return &DB{passwd: passwd, group: group}, nil
}

// Indexes of the fields in a line of passwd(5) or group(5).
const (
	fieldName    = 0
	fieldID      = 2 // index of the uid of a user, or of the gid of a group
	fieldGID     = 3 // index of the gid of a user
	fieldMembers = 3 // index of the members of a group
	minFields    = 4 // minimum number of fields in a valid line
)

// Group returns the gid of the first group with the given name. ok is false if there is none.
func (d *DB) Group(name string) (gid uint32, ok bool) { return d.group.id(d.group.find(name), fieldID) }

// GroupName returns the name of the first group with the given gid. ok is false if there is none.
func (d *DB) GroupName(gid uint32) (name string, ok bool) {
	i := d.group.indexOfID(gid)
	if i < 0 {
		return "", false
	}
	return d.group.lines[i].fields[fieldName], true
}

// Groups returns the argument for setgroups(2) for a user: gid first, then every group that lists the user as a member.
func (d *DB) Groups(user string, gid uint32) []uint32 {
	groups := []uint32{gid}
	for _, l := range d.group.lines {
		groups = account.AddMembership(groups, l.fields, user)
	}
	return groups
}

// SetUID changes the uid of a user. It returns an error that wraps [ErrTaken] if the uid belongs to another user, and [ErrNoEntry]
// if the user does not exist.
func (d *DB) SetUID(name string, uid uint32) error {
	i := d.passwd.find(name)
	if i < 0 {
		return fmt.Errorf("cannot change the uid of %q: %w", name, ErrNoEntry)
	}
	if owner := d.passwd.indexOfID(uid); owner >= 0 && d.passwd.lines[owner].fields[fieldName] != name {
		return fmt.Errorf("cannot give user %q the uid %d: it belongs to user %q: %w", name, uid, d.passwd.lines[owner].fields[fieldName], ErrTaken)
	}
	d.passwd.setField(i, fieldID, formatID(uid))
	return nil
}

// SetGID changes the primary group id of a user. If a group has the user's name, SetGID gives this group the new gid too, and
// changes the primary group of its other users accordingly. If another group already has the new gid, the system then sees
// both groups as one.
func (d *DB) SetGID(name string, gid uint32) error {
	i := d.passwd.find(name)
	if i < 0 {
		return fmt.Errorf("cannot change the gid of %q: %w", name, ErrNoEntry)
	}
	if g := d.group.find(name); g >= 0 {
		old, known := d.group.id(g, fieldID)
		for u := range d.passwd.lines {
			if primary, ok := d.passwd.id(u, fieldGID); ok && known && primary == old {
				d.passwd.setField(u, fieldGID, formatID(gid))
			}
		}
		d.group.setField(g, fieldID, formatID(gid))
	}
	d.passwd.setField(i, fieldGID, formatID(gid))
	return nil
}

// AddGroup adds a group without members. It returns an error that wraps [ErrTaken] if the name or the gid is in use.
func (d *DB) AddGroup(name string, gid uint32) error {
	if name == "" || strings.ContainsAny(name, ":,\n\r \t") {
		return fmt.Errorf("cannot add group %q: %w", name, fs.ErrInvalid)
	}
	if d.group.find(name) >= 0 || d.group.indexOfID(gid) >= 0 {
		return fmt.Errorf("cannot add group %q with gid %d: %w", name, gid, ErrTaken)
	}
	d.group.addLine(name, "x", formatID(gid), "")
	return nil
}

// AddMember makes a user a member of a group. A user who is already a member stays one.
func (d *DB) AddMember(group, user string) error {
	i := d.group.find(group)
	if i < 0 {
		return fmt.Errorf("cannot add %q to group %q: %w", user, group, ErrNoEntry)
	}
	members := d.group.members(i)
	if !slices.Contains(members, user) {
		d.group.setField(i, fieldMembers, strings.Join(append(members, user), ","))
	}
	return nil
}

// Changed reports whether [DB.Save] has something to write.
func (d *DB) Changed() bool { return d.passwd.changed || d.group.changed }

// Save writes the changed files, first /etc/group and then /etc/passwd. It replaces each file atomically and keeps its mode. If
// only the second file fails, the first stays changed, and a second call writes the rest. Save returns an error for a file that is
// a link or a mount point, because a rename would replace the link or fail.
func (d *DB) Save() error {
	for _, t := range []*table{d.group, d.passwd} {
		if !t.changed {
			continue
		}
		if err := t.save(); err != nil {
			return err
		}
		t.changed = false
	}
	return nil
}

// table holds the lines of /etc/passwd or /etc/group.
type table struct {
	path    string
	lines   []line
	changed bool // whether save must write the file
}

// line is one line of the file.
type line struct {
	fields    []string // the text of the line, split at its colons
	lineBreak string   // the line break; "" if the last line has none
}

// isValid reports whether the line describes a user or a group.
func (l line) isValid() bool {
	return len(l.fields) >= minFields && account.IsValidName(l.fields[fieldName])
}

// readTable reads the file at path into a table. A missing file gives an empty table.
func readTable(path string) (*table, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot %w", err) // the text of err begins with the verb and the path
	}
	t := &table{path: path}
	for raw := range strings.Lines(string(data)) {
		text := strings.TrimRight(raw, "\r\n")
		t.lines = append(t.lines, line{fields: strings.Split(text, ":"), lineBreak: raw[len(text):]})
	}
	return t, nil
}

// find returns the index of the first line with the given name, or -1.
func (t *table) find(name string) int {
	return slices.IndexFunc(t.lines, func(l line) bool { return l.isValid() && l.fields[fieldName] == name })
}

// indexOfID returns the index of the first line with the given id, or -1.
func (t *table) indexOfID(id uint32) int {
	for i := range t.lines {
		if got, ok := t.id(i, fieldID); ok && got == id {
			return i
		}
	}
	return -1
}

func (t *table) id(i, field int) (uint32, bool) {
	if i < 0 || !t.lines[i].isValid() {
		return 0, false
	}
	return account.ParseID(t.lines[i].fields[field])
}

// members returns the members of the group in line i, which must be valid.
func (t *table) members(i int) (list []string) {
	for member := range strings.SplitSeq(t.lines[i].fields[fieldMembers], ",") {
		if member = strings.TrimSpace(member); member != "" {
			list = append(list, member)
		}
	}
	return list
}

func (t *table) setField(i, field int, value string) {
	if f := t.lines[i].fields; f[field] != value {
		f[field], t.changed = value, true
	}
}

func (t *table) addLine(f ...string) {
	if n := len(t.lines); n > 0 && !strings.HasSuffix(t.lines[n-1].lineBreak, "\n") {
		t.lines[n-1].lineBreak += "\n"
	}
	t.lines = append(t.lines, line{fields: f, lineBreak: "\n"})
	t.changed = true
}

// save replaces the file with the lines of the table. The new file belongs to the user of this process. An error from syncing the
// directory is ignored, because some file systems can't sync directories.
func (t *table) save() error {
	dir, err := fsutil.OpenDir(filepath.Dir(t.path), nil)
	if err != nil {
		return err
	}
	defer dir.Close()
	var text strings.Builder
	for _, l := range t.lines {
		text.WriteString(strings.Join(l.fields, ":") + l.lineBreak)
	}
	name := filepath.Base(t.path)
	if err := dir.Replace(name, []byte(text.String()), fsutil.ReplaceOptions{Mode: 0o644, KeepMode: true, SyncDirLater: true}); err != nil {
		return err
	}
	_ = dir.SyncParentDir(name)
	return nil
}

func formatID(id uint32) string { return strconv.FormatUint(uint64(id), 10) }
