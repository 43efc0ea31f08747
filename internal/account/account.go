// Package account reads users and groups from /etc/passwd and /etc/group.
//
// It is deliberately small (no cgo, os/user, NSS, fmt): the exec shim links it and pays for every import at each start. An
// invalid line is skipped and the rest of the file counts. Such a line is a comment, has too few fields, a number out of range,
// or an NIS "+" entry. Carriage returns at line ends and lines of any length are fine.
//
// The package starts no goroutine and keeps nothing between calls: a change of the files is seen by the next Lookup.
package account

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ErrNotFound is wrapped by the error of [Lookup] when no such user exists, and when the name has no valid form.
var ErrNotFound = errors.New("no such user")

// User is one account as a process that becomes it needs it.
type User struct {
	Name string // "" when the uid has no line in /etc/passwd
	UID  uint32
	GID  uint32
	Home string // "/" when the uid has no line in /etc/passwd
	// Groups is what setgroups(2) gets: GID first, then every group of /etc/group that lists Name, in the order of the
	// file, without duplicates.
	Groups []uint32
}

// Isolated is the name of the file beside it that lists the isolated profiles: a name a line, "*" for all others, and "-NAME" for one that is not.
const Isolated = "isolated"

// RuntimeDir is the directory in which the exec shim looks for both files. Nothing moves it.
const RuntimeDir = "/run/hinit"

// Published is the name of the file in root's runtime directory by which PID 1 tells the ids of the agent.
const Published = "agent"

// Publish replaces the ids of u by those that the text of that file gives to the user who, if it does.
func (u *User) Publish(text, who string) {
	f := strings.Split(text, "\n")
	if len(f) != 5 || f[0] != who {
		return
	}
	uid, uidOK := parseID(f[1])
	gid, gidOK := parseID(f[2])
	var groups []uint32
	for word := range strings.FieldsSeq(f[3]) {
		if id, ok := parseID(word); ok {
			groups = append(groups, id)
		}
	}
	if uidOK && gidOK {
		u.UID, u.GID, u.Groups = uid, gid, groups
	}
}

// The variables by which a container asks for the ids of the agent's user. Of two, the first that is not empty counts.
var (
	UIDVars = [2]string{"HERMES_UID", "PUID"}
	GIDVars = [2]string{"HERMES_GID", "PGID"}
)

const maxAsked = 65534

// Asked returns the id that the first set variable of the two holds, the variable's name and its text. ok is false unless the text is a
// number from 1 to 65534.
func Asked(env func(name string) string, names [2]string) (id uint32, name, text string, ok bool) {
	for _, name = range names {
		if text = env(name); text != "" {
			break
		}
	}
	id, ok = parseID(text)
	return id, name, text, ok && id >= 1 && id <= maxAsked
}

// Ask replaces the ids of u by the ids that the container's variables ask for. It is for containers with a read-only /etc and
// /run, where PID 1 could not record the ids. Root stays root.
func (u *User) Ask(env func(name string) string) {
	if uid, _, _, ok := Asked(env, UIDVars); ok && u.UID != 0 {
		u.UID = uid
	}
	if gid, _, _, ok := Asked(env, GIDVars); ok && u.UID != 0 {
		u.GID, u.Groups = gid, slices.Concat([]uint32{gid}, u.Groups[1:])
	}
}

// Lookup finds the account that who names, in root+"/etc/passwd" and root+"/etc/group". root is "" for the real files or
// the directory that holds another etc.
//
// The values of who are:
//
//   - a name: the first line of that name. A name made of digits wins over the uid of the same digits.
//   - "uid": the first line with that uid; where there is none, a nameless user whose GID is the uid itself, whose home is
//     "/" and whose only group is that GID.
//   - "uid:gid": as "uid", but GID is the one given and the only group, whatever /etc/group says, as in docker run --user.
//
// 4294967295 is no uid and no gid: the kernel reads it as "leave unchanged". A missing file counts as an empty one; a file
// that exists and can't be read is an error that wraps the cause and not [ErrNotFound]. Lookup blocks on those two files
// only, and may be called from any goroutine.
func Lookup(root, who string) (User, error) {
	uidText, gidText, withGID := strings.Cut(who, ":")
	uid, numeric := parseID(uidText)
	gid, gidOK := parseID(gidText)
	switch {
	case who == "":
		return User{}, &lookupError{who, "the name is empty", ErrNotFound}
	case withGID && !(numeric && gidOK):
		return User{}, &lookupError{who, "want a name, \"uid\" or \"uid:gid\"", ErrNotFound}
	}

	passwd, err := read(root + "/etc/passwd")
	if err != nil {
		return User{}, &lookupError{who, "", err}
	}
	u, found := User{}, false
	if !withGID {
		u, found = find(passwd, func(c User) bool { return c.Name == who })
	}
	if !found && numeric {
		u, found = find(passwd, func(c User) bool { return c.UID == uid })
		if !found {
			u, found = User{UID: uid, GID: uid, Home: "/"}, true
		}
	}
	if !found {
		return User{}, &lookupError{who, "", ErrNotFound}
	}
	if withGID {
		u.GID, u.Groups = gid, []uint32{gid}
		return u, nil
	}

	u.Groups = []uint32{u.GID}
	if u.Name == "" {
		return u, nil
	}
	group, err := read(root + "/etc/group")
	if err != nil {
		return User{}, &lookupError{who, "", err}
	}
	for line := range bytes.Lines(group) {
		u.Groups = addMembership(u.Groups, line, u.Name)
	}
	return u, nil
}

// find returns the first user of passwd that match accepts.
func find(passwd []byte, match func(User) bool) (User, bool) {
	for line := range bytes.Lines(passwd) {
		if u, ok := parsePasswd(line); ok && match(u) {
			return u, true
		}
	}
	return User{}, false
}

// parsePasswd reads name:password:uid:gid:gecos:home[:shell], see passwd(5).
func parsePasswd(line []byte) (User, bool) {
	f := strings.SplitN(string(bytes.TrimSpace(line)), ":", 7)
	if len(f) < 6 || !validName(f[0]) {
		return User{}, false
	}
	uid, uidOK := parseID(f[2])
	gid, gidOK := parseID(f[3])
	if !uidOK || !gidOK {
		return User{}, false
	}
	return User{Name: f[0], UID: uid, GID: gid, Home: f[5]}, true
}

// addMembership appends the gid of a line name:password:gid:member,member of group(5) that lists name.
func addMembership(groups []uint32, line []byte, name string) []uint32 {
	f := strings.SplitN(string(bytes.TrimSpace(line)), ":", 4)
	if len(f) < 4 || !validName(f[0]) {
		return groups
	}
	gid, ok := parseID(f[2])
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

// validName refuses what isn't an account: nothing, a comment, and the NIS markers "+" and "-".
func validName(name string) bool {
	return name != "" && name[0] != '#' && name[0] != '+' && name[0] != '-'
}

// parseID reads a uid or a gid in decimal.
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

// read reads a file by plain system calls; a missing file is empty. os.ReadFile would make a poller and register the file: a
// dozen calls that the shim pays for before every command.
func read(path string) ([]byte, error) {
	fd, err := retry(func() (int, error) { return syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
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
		n, err := retry(func() (int, error) { return syscall.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return data, nil
		}
		data = data[:len(data)+n]
	}
}

// retry repeats a system call that a signal has interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

type lookupError struct {
	who    string
	detail string // instead of cause's text, where there is something better to say
	cause  error
}

func (e *lookupError) Error() string {
	detail := e.detail
	if detail == "" {
		detail = e.cause.Error()
	}
	return "cannot look up user " + strconv.Quote(e.who) + ": " + detail
}

func (e *lookupError) Unwrap() error { return e.cause }
