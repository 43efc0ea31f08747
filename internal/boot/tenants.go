package boot

import (
	"hash/fnv"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"hinit/internal/account"
	"hinit/internal/config"
	"hinit/internal/fsutil"
)

// Tenants are the profiles that have their own users. The zero value has none.
type Tenants struct {
	On   bool
	UIDs config.UIDs     // the first is the group of shared directories, the others are the users
	All  bool            // all profiles are tenants
	Own  map[string]bool // profile → whether it is a tenant, for profiles that are configured individually
}

// TenantsOf returns the tenants of a configuration, none if hinit can't change owners.
func TenantsOf(cfg *config.Config, agent *fsutil.Actor) Tenants {
	if !cfg.Isolated(config.IsolationUser) || !agent.Switches() || cfg.UIDRange().Has(agent.Identity().UID) {
		return Tenants{}
	}
	t := Tenants{On: true, UIDs: cfg.UIDRange(), All: cfg.Isolation.Mode == config.IsolationUser, Own: map[string]bool{rootProfile: false}}
	for name := range cfg.Profiles.Own {
		t.Own[name] = cfg.IsolationOf(name).Mode == config.IsolationUser
	}
	return t
}

// rootProfile can't be a tenant: its home is the data directory itself.
const rootProfile = "default"

// IsOne reports whether a profile is a tenant.
func (t Tenants) IsOne(profile string) bool {
	one, own := t.Own[profile]
	return t.On && (one || t.All && !own)
}

// Has reports whether a uid is in the range of tenants.
func (t Tenants) Has(uid uint32) bool { return t.On && t.UIDs.Has(uid) && uid != t.UIDs.First }

// Assign returns the uid of each tenant. homes has the present owners of all homes, by profile. A tenant keeps the uid that owns
// its home. Another tenant gets the first free uid from a hash of its name on, so that a removed profile that comes back gets its
// old uid. reserved reports whether a uid belongs to another user. A profile without a uid in the result is no tenant, or there
// are too many tenants.
func (t Tenants) Assign(homes map[string]uint32, reserved func(uid uint32) bool) map[string]uint32 {
	assigned, taken := make(map[string]uint32), make(map[uint32]bool)
	if !t.On {
		return assigned
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(homes)), func(name string) bool { return !t.IsOne(name) })
	for _, name := range names {
		if uid := homes[name]; t.Has(uid) && !taken[uid] { // if a home was copied with its owner, only one of the two keeps the uid
			assigned[name], taken[uid] = uid, true
		}
	}
	users := uint32(t.UIDs.Size() - 1)
	for _, name := range names {
		if _, has := assigned[name]; has {
			continue
		}
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(name)) // never fails
		for i := range users {
			uid := t.UIDs.First + 1 + (hash.Sum32()%users+i)%users
			if !taken[uid] && !reserved(uid) {
				assigned[name], taken[uid] = uid, true
				break
			}
		}
	}
	return assigned
}

// OwnersOf returns the uids of all tenants, see [Tenants.Assign]. d is the directory of the homes; it may act with the agent's
// identity.
func (t Tenants) OwnersOf(d *fsutil.Dir) (tenants, homes map[string]uint32, err error) {
	homes = make(map[string]uint32)
	var names []string
	err = d.EachName("", func(name string, kind fs.FileMode) bool {
		if kind.IsDir() && !strings.HasPrefix(name, ".") {
			names = append(names, name)
		}
		return true
	})
	for _, name := range names {
		if info, err := d.Lstat(name); err == nil {
			homes[name] = fsutil.UID(info)
		}
	}
	return t.Assign(homes, reserved), homes, err
}

// reserved reports whether /etc/passwd has a user.
func reserved(uid uint32) bool {
	user, err := account.Lookup("", strconv.FormatUint(uint64(uid), 10))
	return err == nil && user.Name != ""
}

// HomeOwner returns the owner for a profile's home and its files. tenant reports whether it is the profile's own user.
func (o Options) HomeOwner(profile string, tenants map[string]uint32) (to fsutil.Owner, tenant bool) {
	to = o.Owner()
	uid, tenant := tenants[profile]
	if tenant {
		to.UID, to.GID = uid, uid
	}
	return to, tenant
}

// PrivateMode gives access to a home to its owner only.
const PrivateMode = 0o700

// Move gives the home of a profile, in d, to a user: first all files in it, then the home itself. So if the home has the new
// owner, the move is complete; an interrupted move is repeated. w counts the results; with w.DryRun nothing changes.
func Move(d *fsutil.Dir, profile string, to fsutil.Owner, tenant bool, w *fsutil.OwnWalk) error {
	w.To, w.Alone, w.TopLast = to, tenant, true
	if info, err := d.Lstat(profile); err == nil && tenant { // the agent could have linked files of one profile into another
		w.Copied = fsutil.UID(info)
	}
	err := d.OwnTree(profile, false, w)
	if err == nil && tenant && !w.DryRun {
		_, err = d.Chmod(profile, PrivateMode)
	}
	return err
}

// MoveTenants moves the homes that need another owner, until the budget is used up. Then it removes other users' access to the
// agent's files.
func (h *Homes) MoveTenants(d *fsutil.Dir) {
	if !h.Tenants.On {
		return
	}
	tenants, homes, err := h.Tenants.OwnersOf(d)
	if err != nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(homes)) {
		to, tenant := h.HomeOwner(name, tenants)
		if !tenant && h.Tenants.IsOne(name) {
			h.Warn("profile %s has no user of its own: isolation.uids %d-%d has no more; make the range larger — continuing", name, h.Tenants.UIDs.First, h.Tenants.UIDs.Last)
			continue
		}
		if homes[name] == to.UID || !tenant && !h.Tenants.Has(homes[name]) {
			continue
		}
		w := fsutil.OwnWalk{Between: h.InTime}
		if err := Move(d, name, to, tenant, &w); err != nil || w.Failed > 0 {
			h.Warn("cannot give the home of profile %s to uid %d: %d files failed: %v; try again with: hinit isolate apply %s — continuing", name, to.UID, w.Failed, err, name)
			continue
		}
		h.Info("The home of profile %s is uid %d's: %d of %d files changed, %d with names elsewhere left", name, to.UID, w.Changed, w.Seen, w.Refused)
	}
	h.closeToOthers(tenants)
}

// closeToOthers removes other users' access to the agent's files in the data directory and in homes that belong to the agent.
// Tenants keep the right to pass through the directory to their own homes.
func (h *Homes) closeToOthers(tenants map[string]uint32) {
	d, err := fsutil.OpenDir(h.Home, h.Agent)
	if err != nil {
		return
	}
	defer d.Close()
	set := func(rel string, clear, add fs.FileMode) {
		if info, err := d.Lstat(rel); err == nil && fsutil.UID(info) == h.To.UID {
			_, _ = d.Chmod(rel, info.Mode().Perm()&^clear|add) // anything other than a file or directory is left alone
		}
	}
	for _, dir := range []string{"", ProfilesDir} {
		set(dir, 0o006, 0o001)
		entries, _, _ := d.ReadSome(dir, fsutil.MostNames)
		for _, e := range entries {
			if _, tenant := tenants[e.Name()]; dir == "" && e.Name() == ProfilesDir || dir != "" && tenant {
				continue
			}
			set(strings.TrimPrefix(dir+"/"+e.Name(), "/"), 0o007, 0)
		}
	}
}
