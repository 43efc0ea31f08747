package boot

import (
	"io/fs"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
)

// Tenants describes the profiles that have their own users, called tenants. In the zero value no profile is a tenant.
type Tenants struct {
	On        bool
	UIDs      config.UIDs     // the first id is the group of shared directories, the others are the tenants' users; set even if On is false
	AgentUID  uint32          `json:"Not"` // the agent's user, who is no tenant even if the range has its id
	All       bool            // all profiles are tenants
	ByProfile map[string]bool `json:"Own"` // profile → whether it is a tenant, for profiles that are configured individually
}

// TenantsOf returns the tenants of a configuration. There are none if hinit can't change owners, or if the agent's uid or gid is in
// the range for tenants. In the second case On is false but UIDs is set: homes that belong to tenants since an earlier boot keep
// their owners.
func TenantsOf(cfg *config.Config, agent *fsutil.Actor) Tenants {
	if !cfg.Isolated(config.IsolationUser) || !agent.Switches() {
		return Tenants{}
	}
	uids, own := cfg.UIDRange(), agent.Identity()
	if uids.Contains(own.UID) || uids.Contains(own.GID) {
		return Tenants{UIDs: uids, AgentUID: own.UID}
	}
	t := Tenants{On: true, UIDs: uids, AgentUID: own.UID, All: cfg.Isolation.Mode == config.IsolationUser, ByProfile: map[string]bool{rootProfile: false}}
	for name := range cfg.Profiles.Overrides {
		t.ByProfile[name] = cfg.IsolationOf(name).Mode == config.IsolationUser
	}
	return t
}

// rootProfile is the profile whose home is the data directory itself, so it can't be a tenant.
const rootProfile = "default"

// Includes reports whether a profile is a tenant.
func (t Tenants) Includes(profile string) bool {
	one, own := t.ByProfile[profile]
	return t.On && (one || t.All && !own)
}

// HasUID reports whether a uid is in the range for tenants' users.
func (t Tenants) HasUID(uid uint32) bool {
	return t.UIDs.Contains(uid) && uid != t.UIDs.First && uid != t.AgentUID
}

// HasRightOwner reports whether the owner of a tenant's home is right: a tenant's user that owns no other home. The result is also
// true for a missing home. HasRightOwner blocks on the disk.
func (o Options) HasRightOwner(profile string) bool {
	right := true
	err := blocking.Do(blocking.Volume, func() error {
		homes, err := fsutil.OpenNoLink(o.Home+"/"+ProfilesDir, nil)
		if err != nil {
			return nil //nolint:nilerr // without the directory there is no home
		}
		defer homes.Close()
		info, err := homes.Lstat(profile)
		if err == nil {
			right = o.Tenants.HasUID(fsutil.UID(info))
		}
		if err != nil || !right {
			return nil //nolint:nilerr // the home is missing
		}
		return homes.WithIdentity(func(d *fsutil.Dir) error {
			seen := 0
			return d.EachName("", func(name string, kind fs.FileMode) bool { // a copied home has the same owner as the original
				if seen++; seen > fsutil.MaxNames {
					right = false // there are too many homes to compare; the boot program reports this
				} else if kind.IsDir() && name != profile {
					other, err := d.Lstat(name)
					right = err != nil || fsutil.UID(other) != fsutil.UID(info)
				}
				return right
			})
		})
	})
	return right && err == nil
}
