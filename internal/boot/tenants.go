package boot

import (
	"io/fs"
	"slices"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
)

// Tenants describes the profiles that have their own users, called tenants. In the zero value no profile is a tenant.
type Tenants struct {
	On   bool
	UIDs config.UIDs     // the first id is the group of shared directories, the others are the tenants' users
	All  bool            // all profiles are tenants
	Own  map[string]bool // profile → whether it is a tenant, for profiles that are configured individually
}

// TenantsOf returns the tenants of a configuration. There are none if hinit can't change owners.
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

// rootProfile is the profile whose home is the data directory itself, so it can't be a tenant.
const rootProfile = "default"

// Includes reports whether a profile is a tenant.
func (t Tenants) Includes(profile string) bool {
	one, own := t.Own[profile]
	return t.On && (one || t.All && !own)
}

// HasUID reports whether a uid is in the range for tenants' users.
func (t Tenants) HasUID(uid uint32) bool { return t.On && t.UIDs.Has(uid) && uid != t.UIDs.First }

// HasRightOwner reports whether the home of a profile has the right owner. A tenant's home must belong to a tenant's user that
// owns no other home. The home of any other profile must not belong to a tenant's user. For a missing home, the result is true.
// HasRightOwner blocks on the disk.
func (o Options) HasRightOwner(profile string) bool {
	resides, err := blocking.Get(blocking.Volume, func() (bool, error) {
		homes, err := fsutil.OpenNoLink(o.Home+"/"+ProfilesDir, nil)
		if err != nil {
			return true, nil //nolint:nilerr // without the directory there is no home
		}
		defer homes.Close()
		info, err := homes.Lstat(profile)
		if err != nil || !o.Tenants.Includes(profile) || !o.Tenants.HasUID(fsutil.UID(info)) {
			return err != nil || o.Tenants.Includes(profile) == o.Tenants.HasUID(fsutil.UID(info)), nil
		}
		var names []string
		err = homes.EachName("", func(name string, _ fs.FileMode) bool {
			names = append(names, name)
			return true
		})
		return !slices.ContainsFunc(names, func(name string) bool { // a copied home has the same owner as the original
			other, err := homes.Lstat(name)
			return err == nil && name != profile && fsutil.UID(other) == fsutil.UID(info)
		}), err
	})
	return resides && err == nil
}
