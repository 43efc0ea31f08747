package tools

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
	"hinit/internal/isolation/ports"
	"hinit/internal/volume"
	"hinit/internal/wholefile"
	"hinit/profiles"
	"hinit/profiles/archive"
)

// ownerChange describes a change of a home's owner, done or planned.
type ownerChange struct {
	Profile        string `json:"profile"`
	OldUID         int    `json:"from"`    // old uid
	NewUID         int    `json:"to"`      // new uid; the same if nothing changes
	ChangedFiles   int64  `json:"changed"` // files whose owner changes
	UnchangedFiles int64  `json:"left"`    // number of files that keep their owner
	Error          string `json:"error"`   // error; "" without one
}

var isolateVerb = cli.Verb{
	Name: "isolate", Action: "move homes of profiles", Args: "[plan | apply] [PROFILE...] [--uid N] [--json]",
	Summary: "give the homes of profiles to users of their own, or back: a plan, or at once",
	Run:     changeIsolation,
}

func changeIsolation(t *cli.Terminal, c *cli.Call) int {
	expected := c.Flags.Int("uid", 0, "move the homes only if they belong to this `UID`")
	words, code, ok := c.Parse(t, 0, -1)
	if !ok {
		return code
	}
	dry := len(words) == 0 || words[0] != "apply"
	if len(words) > 0 && (words[0] == "plan" || words[0] == "apply") {
		words = words[1:]
	}
	tense := "changed"
	if dry {
		tense = "would change"
	}
	moves, err := changeHomeOwners(t, words, dry, *expected)
	failed := cmdline.ExitDone
	shown := t.ShowResult(c, moves, err, func() {
		for _, m := range moves {
			switch {
			case m.Error != "":
				failed = t.Fail(cmdline.ExitFailed, "%s: cannot move its home: %s", show.EscapeName(m.Profile), show.EscapeLine(m.Error))
			case m.OldUID == m.NewUID && m.ChangedFiles == 0:
				fmt.Fprintf(t.Out, "%s: its owner stays uid %d\n", show.EscapeName(m.Profile), m.NewUID)
			default:
				fmt.Fprintf(t.Out, "%s: uid %d to uid %d, %d files %s, %d left\n", show.EscapeName(m.Profile), m.OldUID, m.NewUID, m.ChangedFiles, tense, m.UnchangedFiles)
			}
		}
	})
	return max(shown, failed)
}

// refusedPorts describes the ports that prevent gateways of isolated profiles from starting, with the reasons.
func refusedPorts(cfg *config.Config) (found []string) {
	for _, profile := range append(slices.Sorted(maps.Keys(cfg.Profiles.Overrides)), "") {
		own := cfg.IsolationOf(profile)
		for _, port := range own.Ports {
			if err := ports.CheckNotEphemeral(port); err != nil && own.IsIsolated() && own.OnMissingFeature != config.MissingDegrade {
				found = append(found, fmt.Sprintf("%s: its gateway can't start: %v", cmp.Or(profile, "each other profile"), err))
			}
		}
	}
	return found
}

// changeHomeOwners gives the homes of the named profiles, or of all profiles, to their users in the configuration. With dry it
// only reports the changes. For expected see [volume.OpenHome].
func changeHomeOwners(t *cli.Terminal, names []string, dry bool, expected int) (moves []ownerChange, err error) {
	cfg, agent, err := loadAgent(t)
	if err != nil {
		return nil, err
	}
	switch {
	case os.Geteuid() != 0:
		return nil, &client.Error{Kind: client.KindNotAllowed, Message: "only root can change owners; be root"}
	case agent.User.UID == 0:
		return nil, errors.New("the agent's user is root, which reads all homes; set agent.user to another user")
	case !agent.Actor.SwitchesIdentity():
		return nil, errors.New("root can't become the agent's user here")
	}
	options := boot.Options{Home: cfg.Home, Agent: agent.Actor, Tenants: agent.WithTenants(cfg).Tenants}
	d, err := fsutil.OpenNoLink(filepath.Join(cfg.Home, "profiles"), nil)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	tenants, homes, err := volume.OwnersOf(options, d, "")
	if err != nil {
		return nil, err
	}
	for _, why := range refusedPorts(cfg) {
		fmt.Fprintln(t.Err, "warning:", show.EscapeLine(why))
	}
	if _, warning := volume.OwnersOutside(options); warning != "" {
		fmt.Fprintln(t.Err, "warning:", show.EscapeLine(warning))
	}
	named := len(names) > 0
	if !named {
		names = slices.Sorted(maps.Keys(homes))
	}
	running := make(map[string]bool)
	if _, err := t.Dial(); err == nil && !dry {
		st, err := t.Status()
		if err != nil {
			return nil, fmt.Errorf("cannot tell which gateways run: %w", err)
		}
		for _, s := range st.Services {
			running[s.Profile] = running[s.Profile] || s.PID != 0
		}
	}
	moves = []ownerChange{}
	for _, name := range names {
		uid, is := homes[name]
		to, tenant := volume.HomeOwner(options, name, tenants, homes)
		m := ownerChange{Profile: name, OldUID: int(uid), NewUID: int(to.UID)}
		switch {
		case !is:
			m.Error = "there is no such profile"
		case !tenant && options.Tenants.Includes(name):
			m.Error = "isolation.uids has no more uids; make the range larger"
		case !named && to.ProtectsFilesOf(uid):
			m.Error = "it belongs to the user of an isolated profile; rename it back, or give it to the agent's user: hinit isolate apply " + name
		case running[name]:
			m.Error = "its gateway runs; stop it: hinit stop " + name
		default:
			w := owntree.Walk{DryRun: dry}
			if expected != 0 || to.ProtectsFilesOf(uid) { // the agent's user may have renamed this home to get its files
				home, was, err := volume.OpenHome(options.Tenants, d, name, expected, "isolate apply")
				if err != nil {
					m.Error = err.Error()
					break
				}
				uid = was // the home may change its owner only while it has this one
				_ = home.Close()
			}
			if err := volume.MoveHome(d, name, uid, to.WithAllowedUID(uid), tenant, &w); err != nil || w.Failed > 0 {
				m.Error = fmt.Sprintf("%d files failed: %v", w.Failed, err)
			}
			m.ChangedFiles, m.UnchangedFiles = w.Changed, w.Refused+w.SkippedMounts
		}
		moves = append(moves, m)
	}
	return moves, nil
}

// openHome opens the home of a profile with the identity of the process, see [volume.OpenHome].
func (m *profileManager) openHome(name string, expected int) (home *fsutil.Dir, owner uint32, err error) {
	homes, err := fsutil.OpenNoLink(filepath.Join(m.cfg.Home, boot.ProfilesDir), nil)
	if err != nil {
		return nil, 0, err
	}
	defer homes.Close()
	return volume.OpenHome(m.bootOptions().Tenants, homes, name, expected, "profile delete")
}

// bootOptions returns the options for changes of homes.
func (m *profileManager) bootOptions() boot.Options {
	return boot.Options{Home: m.cfg.Home, Agent: m.agent.Actor, Tenants: m.agent.WithTenants(m.cfg).Tenants}
}

func (m *profileManager) isTenant(uid uint32) bool { return m.bootOptions().Tenants.HasUID(uid) }

// actorOf returns the identity for a home of this owner: the tenant's user, or otherwise the agent's user.
func (m *profileManager) actorOf(owner uint32) *fsutil.Actor {
	if m.isTenant(owner) {
		return fsutil.NewActor(fsutil.Identity{UID: owner, GID: owner})
	}
	return m.agent.Actor
}

// removeTemporary removes the temporary directory of a profile that loses its name. Otherwise the next profile of this name
// could read the files, because it may get the same user.
func (m *profileManager) removeTemporary(p profiles.Profile) error {
	home, err := fsutil.WithParentDir(p.Home, nil, (*fsutil.Dir).Lstat)
	if err != nil {
		return err
	}
	owner := fsutil.UID(home)
	_, err = fsutil.WithParentDir(fmt.Sprintf("/tmp/hinit-%s-%d", p.Name, owner), m.actorOf(owner), func(d *fsutil.Dir, name string) (none struct{}, err error) {
		if info, err := d.Lstat(name); err != nil || fsutil.UID(info) != owner {
			return none, nil //nolint:nilerr // the profile was never isolated
		}
		return none, d.RemoveAll(name)
	})
	return err
}

// giveDirsToOwner gives root's directories in an open home to the owner of the home, who can then remove the files in them. In a
// tenant's home it also gives directories of other users, except other tenants. Files keep their owner: the owner of the home may
// have moved a file owned by root into it, and must not become able to read it. A home of any other user stays unchanged.
func (m *profileManager) giveDirsToOwner(home *fsutil.Dir, owner uint32) error {
	id := m.actorOf(owner).Identity()
	to := fsutil.Owner{UID: id.UID, GID: id.GID, Excludes: func(uid uint32) bool { return m.isTenant(uid) || !m.isTenant(owner) && uid != 0 }}
	if err := (&owntree.Walk{NewOwner: to, DirsOnly: true}).ChangeOwners(home, "", true); !errors.Is(err, fsutil.ErrProtected) {
		return err
	}
	return nil
}

// clearHome removes all files in an open home except those in keep, with the identity of the home's owner.
func (m *profileManager) clearHome(home *fsutil.Dir, owner uint32, keep ...string) (err error) {
	actor, giveErr := m.actorOf(owner), m.giveDirsToOwner(home, owner)
	entries, more, listErr := home.ReadAtMost("", fsutil.MaxDirNames)
	err = cmp.Or(giveErr, listErr)
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			err = cmp.Or(err, actor.Do(func() error { return home.RemoveAll(e.Name()) }))
		}
	}
	if more && err == nil {
		return m.clearHome(home, owner, keep...)
	}
	return err
}

// importDir is the directory of an import beside the homes, which only the owner of the new home can enter.
type importDir struct {
	*archiver

	homesFD      int // descriptor of the directory homes
	homes, dir   *fsutil.Dir
	file         *os.File      // open directory dir, locked
	owner        *fsutil.Actor // owner of the new home
	hasLeftovers bool          // files of an interrupted import exist
}

// runImport calls run, which imports a profile or finds the offset at which an interrupted import continues. If profiles have
// their own users, run acts as the owner of the new home, in a directory that no other user can enter. So no other user can
// read or change the files. Root then renames the home.
func (a *archiver) runImport(run func() error) (err error) {
	p := importDir{archiver: a, owner: a.agent.Actor}
	if !p.bootOptions().Tenants.Enabled {
		return a.agent.Actor.Do(run)
	}
	rel := archive.ImportPrefix + a.importing.Name
	if err = p.owner.Do(func() error { return os.MkdirAll(a.importing.Dir, 0o755) }); err == nil {
		p.homesFD, err = wholefile.OpenForRoot(a.importing.Dir)
	}
	if err == nil {
		p.homes, err = fsutil.OpenDir("/proc/self/fd/"+strconv.Itoa(p.homesFD), nil)
	}
	if err == nil && p.bootOptions().Tenants.Includes(a.importing.Name) {
		var tenants map[string]uint32
		tenants, _, err = volume.OwnersOf(p.bootOptions(), p.homes, a.importing.Name)
		uid := tenants[a.importing.Name]
		if uid == 0 && err == nil {
			err = errors.New("isolation.uids has no more uids; make the range larger")
		}
		p.owner = fsutil.NewActor(fsutil.Identity{UID: uid, GID: uid})
	}
	if err == nil {
		err = p.open(rel)
	}
	if err != nil {
		return err
	}
	a.importing.Dir, a.importing.ExistsElsewhere = "/proc/self/fd/"+strconv.Itoa(int(p.file.Fd())), p.homes.CheckExists(a.importing.Name) == nil
	if p.hasLeftovers && a.importing.Offset == 0 && !a.printsResumeOffset {
		fmt.Fprintf(a.Err, "removing the files that an interrupted import of %s has left\n", show.EscapeName(a.importing.Name))
		err = p.removeFiles()
	}
	if err == nil {
		err = p.owner.Do(run)
	}
	if !a.printsResumeOffset && !errors.Is(err, archive.ErrInterrupted) {
		if err == nil {
			err = p.installHome()
		}
		err = cmp.Or(err, p.removeFiles())
	}
	_ = p.homes.Remove(rel)
	return err
}

// open makes or opens the directory rel and locks it. It refuses a directory of another user, because the user could read the
// archive.
func (p *importDir) open(rel string) (err error) {
	to := p.owner.Identity()
	if err = p.homes.Mkdir(rel, 0o700); err == nil {
		p.dir, err = p.homes.OpenSubdir(rel)
	}
	if err != nil { // its own path begins with /proc/self/fd
		return fmt.Errorf("%q: %w", filepath.Join(p.importing.Dir, rel), cmp.Or(errors.Unwrap(err), err))
	}
	if volume.IsHome(p.dir, ".") {
		return fmt.Errorf("%s is the home of a profile, which the agent's user has renamed; give it its name back", rel)
	}
	files, _, listErr := p.dir.ReadAtMost("", 1)
	p.hasLeftovers = len(files) > 0
	was, _, err := p.dir.Chown("", fsutil.Owner{UID: to.UID, GID: to.GID, Excludes: func(uid uint32) bool { return uid != 0 || p.hasLeftovers || listErr != nil }})
	if err == nil {
		p.file, err = p.dir.Lock(func(*os.File) error { return errors.New("another command is using it; wait until that ends") })
	} else if errors.Is(err, fsutil.ErrProtected) {
		err = fmt.Errorf("%s belongs to uid %d, and not to the user of this profile, uid %d; remove it", rel, was, to.UID)
	}
	return err
}

// removeFiles removes all files in the directory. They may include the replaced home of another user.
func (p *importDir) removeFiles() error {
	old, owner, err := volume.OpenHome(p.bootOptions().Tenants, p.dir, p.importing.Name, 0, "profile delete")
	uid := p.owner.Identity().UID
	if owner == uid || errors.Is(err, fs.ErrNotExist) {
		err = nil
	} else if err == nil {
		err = p.clearHome(old, owner)
	}
	if err != nil {
		return err
	}
	return p.clearHome(p.dir, uid)
}

// installHome renames the new home to its final place. The same system call moves an old home into the directory of the import.
func (p *importDir) installHome() error {
	name, uid := p.importing.Name, p.owner.Identity().UID
	mode, flags := fs.FileMode(0o755), uint(unix.RENAME_NOREPLACE)
	var replaced fs.FileInfo // the replaced home; nil for a new profile
	if info, err := p.homes.Lstat(name); err == nil && p.importing.MayReplace && info.IsDir() {
		mode, flags = info.Mode().Perm()|0o700, unix.RENAME_EXCHANGE
		old, _, err := volume.OpenHome(p.bootOptions().Tenants, p.homes, name, 0, "profile delete")
		if err != nil {
			return err
		}
		defer old.Close()
		if replaced, err = old.Lstat(""); err != nil {
			return err
		}
	}
	if p.isTenant(uid) {
		mode = 0o700
		if err := volume.RecordName(p.dir, name, name, uid); err != nil {
			return err
		}
	}
	// Root would change whatever the owner of the directory has renamed to this name, so act as the owner.
	err := p.owner.Do(func() error { return p.dir.Chmod(name, mode) })
	if err == nil {
		err = unix.Renameat2(int(p.file.Fd()), name, p.homesFD, name, flags)
	}
	if now, lookErr := p.dir.Lstat(name); err == nil && replaced != nil && (lookErr != nil || fsutil.Stat(now).Ino != fsutil.Stat(replaced).Ino) {
		err = errors.Join(errors.New("another home got its name meanwhile"), unix.Renameat2(int(p.file.Fd()), name, p.homesFD, name, flags))
	}
	if errors.Is(err, unix.EINVAL) && flags == unix.RENAME_EXCHANGE {
		err = archive.ErrNoExchange
	} else if errors.Is(err, unix.EINVAL) {
		err = unix.Renameat(int(p.file.Fd()), name, p.homesFD, name)
	}
	return cmp.Or(err, unix.Syncfs(int(p.file.Fd())))
}
