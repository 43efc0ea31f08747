package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Isolation says which files, ports and sockets a profile's gateway may use.
type Isolation struct {
	Mode                string `key:"mode,short" is:"oneof none files user"` // how the gateway is isolated: one of the Isolation constants
	SharedPaths         Paths  `key:"share" is:"paths" fill:"."`             // templates of paths outside the home that the gateway may use; PATH:ro: read only
	Ports               []int  `key:"ports" is:"ports"`                      // TCP and UDP ports on which the gateway may listen
	MayUseControlSocket bool   `key:"control"`                               // whether the profile may use the control socket
	OnMissingFeature    string `key:"missing" is:"oneof refuse degrade"`     // effect if the kernel lacks a part of the isolation: MissingRefuse or MissingDegrade
}

// The values of [Isolation].Mode.
const (
	IsolationNone  = "none"  // no isolation: all gateways have one user and can read each other's files
	IsolationFiles = "files" // one user, and the kernel confines each gateway to its own files (Landlock)
	IsolationUser  = "user"  // a separate user for each profile, in addition to IsolationFiles
)

// The values of [Isolation].Missing.
const (
	MissingRefuse  = "refuse"  // the gateway isn't started
	MissingDegrade = "degrade" // the gateway starts with the parts that the kernel has
)

// ShareReadOnly at the end of an entry of [Isolation].SharedPaths means that the gateway may only read the path.
const ShareReadOnly = ":ro"

// rootProfile is the profile whose home is the data directory.
const rootProfile = "default"

// IsIsolated reports whether the gateway has any isolation.
func (i Isolation) IsIsolated() bool { return i.Mode == IsolationFiles || i.Mode == IsolationUser }

// IsolationOf returns the isolation of a profile. The root profile is never isolated, because the homes of all other profiles are
// below its home.
func (c *Config) IsolationOf(profile string) Isolation {
	isolation := c.ProfileOf(profile).Isolation
	if profile == rootProfile {
		isolation.Mode = IsolationNone
	}
	return isolation
}

// AnyMode reports whether any profile may have the given mode.
func (c *Config) AnyMode(mode string) bool {
	return c.Isolation.Mode == mode || slices.ContainsFunc(sortedKeys(c.Profiles.Overrides), func(profile string) bool { return c.IsolationOf(profile).Mode == mode })
}

// AnyIsolated reports whether any profile may be isolated.
func (c *Config) AnyIsolated() bool { return c.AnyMode(IsolationFiles) || c.AnyMode(IsolationUser) }

// UIDs is a range of uids. The gid of each user is the same number.
type UIDs struct{ First, Last uint32 }

// Contains reports whether a uid is in the range.
func (u UIDs) Contains(uid uint32) bool { return uid >= u.First && uid <= u.Last }

// Size returns the number of user ids.
func (u UIDs) Size() int { return int(u.Last-u.First) + 1 }

// UIDRange returns the range of user ids for profiles with [IsolationUser].
func (c *Config) UIDRange() UIDs {
	uids, _ := parseUIDs(c.Profiles.UIDs)
	return uids
}

// minUID is the first uid above the system's own uids. maxUID is the last uid that has no special meaning for the kernel.
const (
	minUID = 1000
	maxUID = 1<<31 - 2
)

// parseUIDs parses a range of uids such as 20000-29999.
func parseUIDs(text string) (uids UIDs, err error) {
	from, to, both := strings.Cut(text, "-")
	first, err1 := strconv.ParseUint(from, 10, 31)
	last, err2 := strconv.ParseUint(to, 10, 31)
	switch {
	case !both || err1 != nil || err2 != nil:
		return uids, fmt.Errorf("expected a range of uids such as 20000-29999, got %q", text)
	case last < first:
		return uids, fmt.Errorf("the range %s ends before it begins; write %s-%s", text, to, from)
	case first < minUID:
		return uids, fmt.Errorf("uids below %d belong to the system, got %s; write 20000-29999", minUID, text)
	case last > maxUID:
		return uids, fmt.Errorf("a uid is at most %d, got %s", maxUID, text)
	}
	return UIDs{uint32(first), uint32(last)}, nil
}

// checkSharedPath returns why an entry of [Isolation].SharedPaths is invalid, or "".
func checkSharedPath(entry string) string {
	path := strings.TrimSuffix(entry, ShareReadOnly)
	if path == "/" {
		return `"/" shares everything; name the directories`
	}
	return checkDirTemplate(path)
}

func newIsolation() Isolation {
	return Isolation{Mode: IsolationNone, SharedPaths: Paths{}, Ports: []int{}, OnMissingFeature: MissingRefuse}
}

// validateIsolation reports isolation settings that contradict each other although each is valid by itself.
func (l *loader) validateIsolation() {
	c := l.cfg
	if o, here := c.origins["profiles."+rootProfile+".isolation.mode"]; here && c.Profiles.Overrides[rootProfile].Isolation.IsIsolated() {
		l.problems.reportAtOrigin(o, "cannot isolate the root profile: its home has the homes of all others in it; give each customer a profile with a name")
	}
	l.checkSharedPaths("", c.Isolation)
	users := 0
	for _, name := range sortedKeys(c.Profiles.Overrides) {
		own := c.Profiles.Overrides[name].Isolation
		l.checkSharedPaths("profiles."+name+".", own)
		if own.Mode == IsolationUser && name != rootProfile {
			users++
		}
	}
	key, uids := "isolation.uids", c.UIDRange()
	free := uids.Size() - 1 // the first id is the group of shared directories, so no profile can get it
	switch {
	case uids == UIDs{}: // the invalid text is already reported
	case users > free:
		l.problems.reportAtOrigin(c.origins[key], "cannot use %s: %s has a group and %d uids for %d profiles with isolation: user; make the range larger",
			key, c.Profiles.UIDs, free, users)
	case c.Isolation.Mode == IsolationUser && free < c.Profiles.Max:
		l.problems.reportAtOrigin(c.origins[key], "cannot use %s: %s has a group and %d uids, and there may be %d profiles (profiles.max); "+
			"make the range larger, or profiles.max smaller", key, c.Profiles.UIDs, free, c.Profiles.Max)
	case c.AnyMode(IsolationUser):
		l.checkUserOutsideRange("agent.user", c.Agent.User)
		for _, name := range sortedKeys(c.Services) {
			if user := c.Services[name].User; user != c.Agent.User {
				l.checkUserOutsideRange("services."+name+".user", user)
			}
		}
	}
}

// checkUserOutsideRange reports a user or group that is configured by number and lies in the range of the profiles' uids.
func (l *loader) checkUserOutsideRange(key, user string) {
	for text := range strings.SplitSeq(user, ":") {
		if id, err := strconv.ParseUint(text, 10, 32); err == nil && l.cfg.UIDRange().Contains(uint32(id)) {
			const uids = "isolation.uids"
			l.problems.reportAtOrigin(l.cfg.origins[uids], "cannot use %s: %s has %d of %s in it; choose another range", uids, l.cfg.Profiles.UIDs, id, key)
			return
		}
	}
}

// checkSharedPaths reports a path in [Isolation].SharedPaths that contains other profiles or hinit's own files.
func (l *loader) checkSharedPaths(prefix string, i Isolation) {
	for _, entry := range i.SharedPaths {
		path := filepath.Clean(l.cfg.ExpandString(strings.TrimSuffix(entry, ShareReadOnly), map[string]string{profilePlaceholder: "NAME", profileHomePlaceholder: l.cfg.Home + "/profiles/NAME"}))
		for _, inside := range []string{l.cfg.Home + "/profiles/x", l.cfg.Home + "/.hinit/x", l.cfg.Control.Socket} {
			if strings.HasPrefix(inside, path+"/") {
				key := prefix + "isolation.share"
				l.problems.reportAtOrigin(l.cfg.origins[key], "cannot share %s by %s: %s is in it; share a directory beside it", path, key, filepath.Dir(inside))
				break
			}
		}
	}
}
