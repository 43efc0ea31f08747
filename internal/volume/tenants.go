package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
)

// assignUIDs assigns a uid to each tenant (a profile with its own user). homes has the present owner of each home, by profile.
// A tenant keeps the uid that owns its home.
//
// If a home was copied, several homes may have the same owner. Only one of them keeps the uid: the home whose name hashes to
// the uid, or else the first home by name. The home of the profile last keeps it only if no other home has it. A tenant without
// a uid gets the first free uid, starting from a hash of its name. So a removed profile that comes back usually gets its old
// uid. reserved reports whether a uid belongs to another user.
//
// The result has no entry for a profile that is not a tenant, or for which no uid is free.
func assignUIDs(t boot.Tenants, homes map[string]uint32, last string, reserved func(uid uint32) bool) map[string]uint32 {
	assigned, taken := make(map[string]uint32), make(map[uint32]bool)
	if !t.Enabled || t.UIDs.Size() < 2 {
		return assigned
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(homes)), func(name string) bool { return !t.Includes(name) })
	rank := func(name string) int { // the home with the lowest rank keeps the uid
		switch {
		case homes[name] == FirstUID(t.UIDs, name):
			return 0
		case name == last:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	for _, name := range names {
		if uid := homes[name]; t.HasUID(uid) && !taken[uid] { // of several homes with the same owner, only the first keeps it
			assigned[name], taken[uid] = uid, true
		}
	}
	for _, uid := range homes { // a renamed home also keeps its user
		taken[uid] = true
	}
	for _, name := range names {
		if _, has := assigned[name]; has {
			continue
		}
		first, users := t.UIDs.First+1, uint32(t.UIDs.Size()-1)
		own := FirstUID(t.UIDs, name) - first
		for i := range users {
			if uid := first + (own+i)%users; !taken[uid] && !reserved(uid) {
				assigned[name], taken[uid] = uid, true
				break
			}
		}
	}
	return assigned
}

// FirstUID returns the uid of a new profile with this name, if the uid is free. uids must have at least two ids.
func FirstUID(uids config.UIDs, name string) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name))
	return uids.First + 1 + hash.Sum32()%uint32(uids.Size()-1)
}

// OwnersOf returns the uid of each tenant, see assignUIDs, and the present owner of each home, both by profile. d is the
// directory of the homes; it may act with the agent's identity. The profile last gets a uid even without a home, and is the
// last to keep a uid that several homes share. A directory with more than [fsutil.MaxDirNames] names is an error. So is a home
// that is renamed during the call, because it could look like two homes with the same owner.
func OwnersOf(o boot.Options, d *fsutil.Dir, last string) (tenants, homes map[string]uint32, err error) {
	homes = make(map[string]uint32)
	seen, inodes, hidden := 0, make(map[inode]bool), make(map[uint32]bool)
	var problem error
	err = d.WithIdentity(func(d *fsutil.Dir) error {
		return d.EachName("", func(name string, kind fs.FileMode) bool {
			if seen++; seen > fsutil.MaxDirNames {
				problem = fsutil.ErrTooManyNames
			} else if kind.IsDir() {
				if info, err := d.Lstat(name); err == nil {
					st := fsutil.Stat(info)
					if id := (inode{st.Dev, st.Ino}); strings.HasPrefix(name, ".") { // a renamed home may have a name that no profile has, and keeps its user
						hidden[st.Uid] = hidden[st.Uid] || IsHome(d, name)
					} else if inodes[id] {
						problem = fmt.Errorf("%q: %w", name, unix.ESTALE)
					} else {
						inodes[id], homes[name] = true, st.Uid
					}
				}
			}
			return problem == nil
		})
	})
	if err = cmp.Or(err, problem); err != nil {
		return nil, nil, err
	}
	wanted := maps.Clone(homes)
	if last != "" {
		wanted[last] += 0
	}
	outside, _ := OwnersOutside(o)
	return assignUIDs(o.Tenants, wanted, last, func(uid uint32) bool { return outside[uid] || hidden[uid] || reserved(uid) }), homes, nil
}

// OwnersOutside returns the ids of tenants that are user or group of a file directly in the data directory. It also returns a
// warning about such a file, or "". A tenant's user and group have the same id. OwnersOutside doesn't search subdirectories,
// because that could take minutes.
func OwnersOutside(o boot.Options) (owners map[uint32]bool, warning string) {
	d, err := fsutil.OpenNoLink(o.Home, nil)
	if err != nil {
		return nil, ""
	}
	defer d.Close()
	owners = make(map[uint32]bool)
	entries, _, _ := d.ReadAtMost("", fsutil.MaxDirNames)
	for _, e := range entries {
		info, err := d.Lstat(e.Name())
		if err != nil {
			continue
		}
		st := fsutil.Stat(info)
		for _, id := range []uint32{st.Uid, st.Gid} {
			if o.Tenants.HasUID(id) {
				owners[id] = true
				warning = fmt.Sprintf("%q belongs to user or group %d of isolation.uids (one of %d such ids here): no other profile gets this id, but a profile that has it can use the file, "+
					"and more files of the id may lie elsewhere; give them to another user or group, or choose another range", o.Home+"/"+e.Name(), id, len(owners))
			}
		}
	}
	return owners, warning
}

func reserved(uid uint32) bool {
	user, err := account.Lookup("", strconv.FormatUint(uint64(uid), 10))
	return err == nil && user.Name != ""
}

// HomeOwner returns the user to whom a profile's home and its files must belong. tenants and homes are results of [OwnersOf].
// tenant reports whether the profile has its own user. A tenant also gets files of the home's present owner: a copied home
// belongs to the user of the original. Files of other tenants keep their owners.
func HomeOwner(o boot.Options, profile string, tenants, homes map[string]uint32) (to fsutil.Owner, tenant bool) {
	to = o.Owner()
	uid, tenant := tenants[profile]
	if tenant {
		to.UID, to.GID = uid, uid
		to = to.WithAllowedUID(homes[profile])
	}
	return to, tenant
}

// privateMode is the mode of a tenant's home: only its owner has access.
const privateMode = 0o700

// MoveHome gives the directory profile in d, the home of a profile, from the present owner was to the user to. It changes the
// files first and the home itself last. So a home with the new owner is complete, and a caller can repeat an interrupted move.
//
// tenant says that the user belongs to this profile alone. Then MoveHome records the name of the home; otherwise it removes the
// record. If the agent exchanges the home with another tenant's home during the move, MoveHome leaves that home unchanged and
// returns an error. It also returns the first failure that w counts. If w.DryRun is set, nothing changes.
func MoveHome(d *fsutil.Dir, profile string, was uint32, to fsutil.Owner, tenant bool, w *owntree.Walk) error {
	w.NewOwner, w.RefuseHardLinked, w.TopLast, w.ExpectedTopUID = to, tenant, true, &was
	if tenant {
		w.CopyLinkedUID, w.TopMode = was, privateMode
	}
	if err := w.ChangeOwners(d, profile, false); err != nil || w.DryRun || w.Failed > 0 || tenant && was == to.UID {
		return cmp.Or(err, w.FirstFailure)
	}
	if !tenant { // the agent may have exchanged the home, so act as the new owner
		return fsutil.NewActor(fsutil.Identity{UID: to.UID, GID: to.GID}).Do(func() error {
			err := d.RemoveAll(profile + "/" + boot.ProfileNameFile)
			if errors.Is(err, fs.ErrPermission) { // the mode of the home does not let its owner write
				err = cmp.Or(d.Chmod(profile, privateMode), d.RemoveAll(profile+"/"+boot.ProfileNameFile))
			}
			return err
		})
	}
	return RecordName(d, profile, profile, to.UID)
}

func asUID(uid uint32) *fsutil.Actor { return fsutil.NewActor(fsutil.Identity{UID: uid, GID: uid}) }

// IsHome reports whether the directory rel in d is the home of a tenant, which has a record of its name. It returns true if the
// record can't be read.
func IsHome(d *fsutil.Dir, rel string) bool {
	_, err := d.Lstat(rel + "/" + boot.ProfileNameFile)
	return !errors.Is(err, fs.ErrNotExist)
}

// RecordName records in the home rel in d that hinit has given it to the user uid, for the profile of this name. It acts as
// this user, so it can't write into another user's home.
func RecordName(d *fsutil.Dir, rel, profile string, uid uint32) error {
	home, err := d.OpenSubdir(rel)
	if err != nil {
		return err
	}
	defer home.Close()
	text, private := []byte(profile+"\n"), fsutil.ReplaceOptions{Mode: 0o600}
	return asUID(uid).Do(func() error { return home.Replace(boot.ProfileNameFile, text, private) })
}

// OpenHome opens the home profile in d, and returns the uid of its owner. Any other owner than expected is an error, unless
// expected is 0. Then OpenHome refuses a home that was given to a tenant's user under another name, because the agent's user
// may have renamed it. The error tells the user to call command with --uid.
func OpenHome(t boot.Tenants, d *fsutil.Dir, profile string, expected int, command string) (home *fsutil.Dir, uid uint32, err error) {
	if home, err = d.OpenSubdir(profile); err != nil {
		return nil, 0, err
	}
	info, err := home.Lstat("")
	if err != nil {
		return nil, 0, errors.Join(err, home.Close())
	}
	var name []byte
	switch uid = fsutil.UID(info); {
	case expected != 0 && uint32(expected) != uid:
		err = fmt.Errorf("its home belongs to uid %d, not to uid %d", uid, expected)
	case expected == 0 && t.HasUID(uid):
		_ = asUID(uid).Do(func() error { name, err = home.ReadFile(boot.ProfileNameFile, fsutil.MaxDirNames); return err }) // if the file can't be read, the name is unknown
		err = nil
		if string(name) != profile+"\n" {
			err = fmt.Errorf("its home belongs to uid %d, and hinit did not give it to this user under this name: it may be the home of another "+
				"profile, which the agent's user has renamed; if it is the right one, use: hinit %s %s --uid %d", uid, command, profile, uid)
		}
	}
	return home, uid, err
}

// moveHomesTimeout is how long the boot, or the start of a gateway, waits for moves of homes to other users.
const moveHomesTimeout = 5 * time.Second

// moveHomes gives the home of each tenant to the tenant's user. It stops after moveHomesTimeout, and the repair in the background
// moves the remaining homes. A home that belongs to a tenant's user keeps its owner, unless the home is a copy. At the end,
// moveHomes removes other users' access to the agent's files. If starting is not "", it moves only the home of this profile,
// because gateways of other profiles may be running.
func moveHomes(ctx context.Context, o boot.Options, starting string) {
	say := boot.StepLog{Tell: o.Say}
	d, err := fsutil.OpenNoLink(o.Home+"/"+boot.ProfilesDir, nil)
	if err != nil {
		return
	}
	defer d.Close()
	tenants, homes, err := OwnersOf(o, d, starting)
	if err != nil {
		say.Warn("no home is given to the user of its profile: cannot read the homes in %s: %v — continuing", d.Path(), err)
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, moveHomesTimeout, errTimeLimit)
	defer cancel()
	for _, name := range slices.Sorted(maps.Keys(homes)) {
		if starting != "" && name != starting {
			continue
		}
		to, tenant := HomeOwner(o, name, tenants, homes)
		if !tenant && o.Tenants.Includes(name) {
			say.Warn("profile %s has no user of its own: isolation.uids %d-%d has no more; make the range larger — continuing", name, o.Tenants.UIDs.First, o.Tenants.UIDs.Last)
		}
		// Without the marker, the agent is still making the profile.
		if homes[name] == to.UID || !tenant || errors.Is(d.CheckExists(name+"/"+o.Tenants.ProfileMarker), fs.ErrNotExist) {
			continue
		}
		w := owntree.Walk{BetweenBatches: func() error { return context.Cause(ctx) }}
		if err := MoveHome(d, name, homes[name], to, tenant, &w); err != nil || w.Failed > 0 {
			say.Warn("cannot give the home of profile %s to uid %d: %d files failed: %v; try again with: hinit isolate apply %s — continuing", name, to.UID, w.Failed, err, name)
			continue
		}
		say.Info("The home of profile %s is uid %d's: %d files changed, %d with names elsewhere left", name, to.UID, w.Changed, w.Refused)
	}
	removeOtherAccess(o)
}

// removeOtherAccess removes other users' access to the agent's files in the data directory, and to homes that belong to the agent.
// Tenants may still pass through the data directory to their own homes.
func removeOtherAccess(o boot.Options) {
	d, err := fsutil.OpenDir(o.Home, o.Agent)
	if err != nil {
		return
	}
	defer d.Close()
	set := func(rel string, clear, add fs.FileMode) {
		if info, err := d.Lstat(rel); err == nil && fsutil.UID(info) == o.Owner().UID {
			_ = d.Chmod(rel, info.Mode().Perm()&^clear|add) // Chmod changes only regular files and directories
		}
	}
	for _, dir := range []string{"", boot.ProfilesDir} {
		set(dir, 0o006, 0o001)
		entries, _, _ := d.ReadAtMost(dir, fsutil.MaxDirNames)
		for _, e := range entries {
			if rel := path.Join(dir, e.Name()); rel != boot.ProfilesDir {
				set(rel, 0o007, 0)
			}
		}
	}
}
