package boot

import (
	"io/fs"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
)

// Tenants are the profiles that have users of their own. The zero value has none.
type Tenants struct {
	Enabled bool `json:"On"`
	// the first id is the group of shared directories, the others are users of tenants; set even without tenants
	UIDs          config.UIDs
	AgentUID      uint32          `json:"Not"` // the agent's user, who is no tenant even if its id is in UIDs
	All           bool            // all profiles are tenants
	ByProfile     map[string]bool `json:"Own"`    // whether a profile is a tenant, for profiles that set this themselves
	ProfileMarker string          `json:"Marker"` // file that the agent writes last when it makes a profile
}

// TenantsOf returns the tenants of a configuration. It returns none if hinit can't change owners, or if the agent's uid or gid
// is in the range of tenants. In the second case it sets UIDs, so that homes of tenants from an earlier boot keep their owners.
func TenantsOf(cfg *config.Config, agent *fsutil.Actor) Tenants {
	if !cfg.AnyMode(config.IsolationUser) || !agent.SwitchesIdentity() {
		return Tenants{}
	}
	uids, own := cfg.UIDRange(), agent.Identity()
	if uids.Contains(own.UID) || uids.Contains(own.GID) {
		return Tenants{UIDs: uids, AgentUID: own.UID}
	}
	t := Tenants{Enabled: true, UIDs: uids, AgentUID: own.UID, All: cfg.Isolation.Mode == config.IsolationUser, ByProfile: map[string]bool{rootProfile: false}, ProfileMarker: cfg.Profiles.Marker}
	for name := range cfg.Profiles.Overrides {
		t.ByProfile[name] = cfg.IsolationOf(name).Mode == config.IsolationUser
	}
	return t
}

// rootProfile is the profile whose home is the data directory itself. It can't be a tenant.
const rootProfile = "default"

// Includes reports whether a profile is a tenant.
func (t Tenants) Includes(profile string) bool {
	one, own := t.ByProfile[profile]
	return t.Enabled && (one || t.All && !own)
}

// HasUID reports whether a uid is in the range for users of tenants.
func (t Tenants) HasUID(uid uint32) bool {
	return t.UIDs.Contains(uid) && uid != t.UIDs.First && uid != t.AgentUID
}

// HasRightOwner reports whether a tenant's home belongs to the right user: a user from the range of tenants, without another
// home. It is true for a missing home. It blocks on the disk.
func (o Options) HasRightOwner(profile string) bool {
	right := true
	err := blocking.Do(blocking.Volume, func() error {
		homes, err := fsutil.OpenNoLink(o.Home+"/"+ProfilesDir, nil)
		if err != nil {
			return nil //nolint:nilerr // without the directory there is no home
		}
		defer homes.Close()
		info, err := homes.Lstat(profile)
		if err != nil || !o.Tenants.HasUID(fsutil.UID(info)) {
			right = err != nil
			return nil
		}
		return homes.WithIdentity(func(d *fsutil.Dir) error {
			seen := 0
			return d.EachName("", func(name string, kind fs.FileMode) bool { // a copied home has the owner of the original, so compare the owner with all homes
				if seen++; seen > fsutil.MaxDirNames {
					right = false // too many homes to compare; the boot program reports this case
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
