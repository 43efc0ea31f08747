// Package account reads users and groups from /etc/passwd and /etc/group.
//
// It is small on purpose and uses no cgo, os/user, NSS or fmt. The reason is the exec shim, which links this package and runs
// before every command in the container: each import would delay it.
//
// The functions skip invalid lines. A line is invalid if it is a comment, has too few fields, has a number out of range, or is an
// NIS "+" entry. Carriage returns at line ends and lines of any length are allowed.
//
// The package starts no goroutine and keeps no state: each Lookup reads the files again.
package account

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"hinit/internal/trust"
)

// ErrNotFound is the error of [Lookup] if the user does not exist, or if the text is no valid name or id. Test for it with
// [errors.Is].
var ErrNotFound = errors.New("no such user")

// User holds the account data that a process needs to switch to this user.
type User struct {
	Name string // "" when the uid has no line in /etc/passwd
	UID  uint32
	GID  uint32
	Home string // home directory; "/" if the uid is not in /etc/passwd
	// Groups is the argument for setgroups(2): GID first, then every group of /etc/group that lists Name, in the order of the
	// file, without duplicates.
	Groups []uint32
}

// RuntimeDir is the directory in which the exec shim looks for [AgentIDsFile] and [IsolatedProfilesFile]. No setting changes it.
const RuntimeDir = "/run/hinit"

// AgentIDsFile is the name of the file in which PID 1 publishes the name, uid, gid and groups of the agent's user, each on its
// own line. It is in the directory of the control socket. The exec shim needs it if /etc/passwd is read-only, so that PID 1 could
// not store requested ids in it.
const AgentIDsFile = "agent"

// IsolatedProfilesFile is the name of the file in which PID 1 lists the isolated profiles, one name per line, in the directory of
// the control socket. An isolated profile has its own user. The line "*" means all profiles without their own line, and the line
// "-NAME" means that the profile NAME is not isolated. If no profile is isolated, the file is empty or missing.
const IsolatedProfilesFile = "isolated"

// ListsProfile reports whether the profile is isolated according to list, the content of [IsolatedProfilesFile].
func ListsProfile(list, profile string) bool {
	has := func(line string) bool { return strings.Contains("\n"+list, "\n"+line+"\n") }
	return has(profile) || has("*") && !has("-"+profile)
}

// With these environment variables, the container requests a uid and a gid for the agent's user, for example so that it owns
// the files on a mounted volume. HERMES_UID is the agent's own name; other images use PUID. In each pair, the first variable
// that is not empty applies.
var (
	UIDVars = [2]string{"HERMES_UID", "PUID"}
	GIDVars = [2]string{"HERMES_GID", "PGID"}
)

// maxRequestedID is the highest id that a variable can request. The id after it, 65535, means "no id" to old system calls.
const maxRequestedID = 65534

// RequestedID returns the id that the container requests with the first non-empty variable of names, and the name and text of
// this variable. ok is false if all variables are empty, or if the text is not a number from 1 to 65534. The callers report the
// text of an invalid request.
func RequestedID(env func(name string) string, names [2]string) (id uint32, name, text string, ok bool) {
	for _, name = range names {
		if text = env(name); text != "" {
			break
		}
	}
	id, ok = ParseID(text)
	return id, name, text, ok && id >= 1 && id <= maxRequestedID
}

// ApplyRequestedIDs replaces the ids of u with the ids that the container requests with [UIDVars] and [GIDVars]. A caller
// needs it if /etc and /run are read-only, because PID 1 could not store the requested ids there. If u is root, it stays
// unchanged.
func (u *User) ApplyRequestedIDs(env func(name string) string) {
	if uid, _, _, ok := RequestedID(env, UIDVars); ok && u.UID != 0 {
		u.UID = uid
	}
	if gid, _, _, ok := RequestedID(env, GIDVars); ok && u.UID != 0 {
		u.GID, u.Groups = gid, slices.Concat([]uint32{gid}, u.Groups[1:])
	}
}

// Lookup finds an account in root+"/etc/passwd" and root+"/etc/group". root is "" for the files of this system, or a directory
// that contains another etc.
//
// The parameter user is one of these:
//
//   - a name: Lookup returns the first line with that name. A name made of digits takes precedence over a uid with the same
//     digits.
//   - "uid": Lookup returns the first line with that uid. Without such a line, it returns a user without a name, whose GID and
//     only group is the uid itself, and whose home is "/".
//   - "uid:gid": like "uid", but with the given GID as the only group, whatever /etc/group says. docker run --user does the same.
//
// The id 4294967295 is invalid, because the kernel takes it as "leave unchanged". A missing file counts as empty. If a file
// exists and can't be read, the error wraps the cause and not [ErrNotFound]. Lookup blocks on these two files only. Any
// goroutine may call it.
func Lookup(root, user string) (User, error) {
	uidText, gidText, withGID := strings.Cut(user, ":")
	uid, numeric := ParseID(uidText)
	gid, gidOK := ParseID(gidText)
	switch {
	case user == "":
		return User{}, &lookupError{user, "the name is empty", ErrNotFound}
	case withGID && !(numeric && gidOK):
		return User{}, &lookupError{user, "want a name, \"uid\" or \"uid:gid\"", ErrNotFound}
	}

	passwd, err := ReadFile(root + "/etc/passwd")
	if err != nil {
		return User{}, &lookupError{user, "", err}
	}
	u, found := User{}, false
	if !withGID {
		u, found = findUser(passwd, func(c User) bool { return c.Name == user })
	}
	if !found && numeric {
		u, found = findUser(passwd, func(c User) bool { return c.UID == uid })
		if !found {
			u, found = User{UID: uid, GID: uid, Home: "/"}, true
		}
	}
	if !found {
		return User{}, &lookupError{user, "", ErrNotFound}
	}
	if withGID {
		u.GID, u.Groups = gid, []uint32{gid}
		return u, nil
	}

	u.Groups = []uint32{u.GID}
	if u.Name == "" {
		return u, nil
	}
	group, err := ReadFile(root + "/etc/group")
	if err != nil {
		return User{}, &lookupError{user, "", err}
	}
	for line := range bytes.Lines(group) {
		u.Groups = AddMembership(u.Groups, strings.SplitN(string(bytes.TrimSpace(line)), ":", 4), u.Name)
	}
	return u, nil
}

// findUser returns the first user in passwd, the content of /etc/passwd, for which match returns true.
func findUser(passwd []byte, match func(User) bool) (User, bool) {
	for line := range bytes.Lines(passwd) {
		if u, ok := parsePasswd(line); ok && match(u) {
			return u, true
		}
	}
	return User{}, false
}

// parsePasswd parses a line of passwd(5): name:password:uid:gid:gecos:home[:shell]. It returns false if the line is invalid.
func parsePasswd(line []byte) (User, bool) {
	f := strings.SplitN(string(bytes.TrimSpace(line)), ":", 7)
	if len(f) < 6 || !IsValidName(f[0]) {
		return User{}, false
	}
	uid, uidOK := ParseID(f[2])
	gid, gidOK := ParseID(f[3])
	if !uidOK || !gidOK {
		return User{}, false
	}
	return User{Name: f[0], UID: uid, GID: gid, Home: f[5]}, true
}

// AddMembership takes the fields of a line of group(5): name, password, gid, and members with commas between them. If the line
// lists name as a member, AddMembership appends the gid of the line to groups, unless groups already contains it. It returns
// groups.
func AddMembership(groups []uint32, f []string, name string) []uint32 {
	if len(f) < 4 || !IsValidName(f[0]) {
		return groups
	}
	gid, ok := ParseID(f[2])
	if !ok || slices.Contains(groups, gid) {
		return groups
	}
	for member := range strings.SplitSeq(f[3], ",") {
		if strings.TrimSpace(member) == name {
			return append(groups, gid)
		}
	}
	return groups
}

// IsValidName reports whether name, the first field of a line, is the name of an account. An empty line has an empty first
// field, a comment begins with "#", and an NIS entry with "+" or "-".
func IsValidName(name string) bool {
	return name != "" && name[0] != '#' && name[0] != '+' && name[0] != '-'
}

// ParseID parses a uid or a gid in decimal. It returns false for 4294967295, which means "no id" to the kernel.
func ParseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

// ReadFile reads a file with plain system calls. A missing file counts as empty. os.ReadFile would first set up epoll(7) for the
// file, which costs the exec shim a dozen system calls before every command.
func ReadFile(path string) ([]byte, error) {
	fd, err := trust.Retry(func() (int, error) { return syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer syscall.Close(fd)
	data := make([]byte, 0, 4096)
	for {
		data = slices.Grow(data, 512)
		n, err := trust.Retry(func() (int, error) { return syscall.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return data, nil
		}
		data = data[:len(data)+n]
	}
}

type lookupError struct {
	user, detail string
	cause        error
}

func (e *lookupError) Error() string {
	return "cannot look up user " + strconv.Quote(e.user) + ": " + cmp.Or(e.detail, e.cause.Error())
}

func (e *lookupError) Unwrap() error { return e.cause }
