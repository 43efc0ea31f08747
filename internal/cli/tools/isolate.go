package tools

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
	"hinit/internal/volume"
)

// homeMove describes how the owner of a profile's home changes, or would change.
type homeMove struct {
	Profile string `json:"profile"`
	From    int    `json:"from"`    // uid of the owner before
	To      int    `json:"to"`      // uid of the new owner; the same if nothing changes
	Changed int64  `json:"changed"` // number of files whose owner changes
	Left    int64  `json:"left"`    // number of files that keep their owner: devices, and files with other hard links that can't be copied
	Error   string `json:"error"`   // why the home could not be moved; "" without an error
}

var isolateVerb = cli.Verb{
	Name: "isolate", Doing: "move homes of profiles", Args: "[plan | apply] [PROFILE...] [--uid N] [--json]",
	Summary: "give the homes of profiles to users of their own, or back: a plan, or at once",
	Help: `Each profile with isolation: user in hinit.yaml has a user of its own, who owns its home. The start of the container moves
the homes; for large ones, apply does it before, one profile after the other. Without isolation, it gives them back.
plan changes nothing. A gateway has to be stopped while its home moves. What was interrupted goes on when it is typed again.
With --uid N, only a home that user N owns moves, also if another profile had it before.`,
	Run: isolate,
}

func isolate(t *cli.Terminal, c *cli.Call) int {
	expected := c.Flags.Int("uid", 0, "move the homes only if they belong to this `UID`")
	words, code, ok := c.Parse(t, 0, -1)
	if !ok {
		return code
	}
	dry := len(words) == 0 || words[0] != "apply"
	if len(words) > 0 && (words[0] == "plan" || words[0] == "apply") {
		words = words[1:]
	}
	moves, err := moveHomes(t, words, dry, *expected)
	failed := cmdline.Done
	shown := t.Show(c, moves, err, func() {
		for _, m := range moves {
			tense := map[bool]string{true: "would change", false: "changed"}[dry]
			switch {
			case m.Error != "":
				failed = t.Fail(cmdline.Failed, "%s: cannot move its home: %s", show.Name(m.Profile), show.Line(m.Error))
			case m.From == m.To && m.Changed == 0:
				fmt.Fprintf(t.Out, "%s: stays uid %d's\n", show.Name(m.Profile), m.To)
			default:
				fmt.Fprintf(t.Out, "%s: uid %d to uid %d, %d files %s, %d left\n", show.Name(m.Profile), m.From, m.To, m.Changed, tense, m.Left)
			}
		}
	})
	return max(shown, failed)
}

// moveHomes changes the owner of the homes of the named profiles, or of all profiles, to the user that the configuration demands.
// If dry is true, it only reports what it would do. See [volume.OpenHome] for expected.
func moveHomes(t *cli.Terminal, names []string, dry bool, expected int) (moves []homeMove, err error) {
	cfg, agent, err := loadAgent(t)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 || !agent.Actor.Switches() {
		return nil, &client.Error{Kind: client.KindNotAllowed, Message: "only root can change owners; be root"}
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
	if _, warning := volume.OwnersOutside(options); warning != "" {
		fmt.Fprintln(t.Err, "warning:", show.Line(warning))
	}
	named := len(names) > 0
	if !named {
		names = slices.Sorted(maps.Keys(homes))
	}
	running := make(map[string]bool)
	if _, err := t.Dial(); err == nil && !dry {
		st, err := t.Status(cli.ShortWait)
		if err != nil {
			return nil, fmt.Errorf("cannot tell which gateways run: %w", err)
		}
		for _, s := range st.Services {
			running[s.Profile] = running[s.Profile] || s.PID != 0
		}
	}
	moves = []homeMove{}
	for _, name := range names {
		uid, is := homes[name]
		to, tenant := volume.HomeOwner(options, name, tenants, homes)
		m := homeMove{Profile: name, From: int(uid), To: int(to.UID)}
		switch {
		case !is:
			m.Error = "there is no such profile"
		case !tenant && options.Tenants.Includes(name):
			m.Error = "isolation.uids has no more uids; make the range larger"
		case !named && to.Keeps(uid):
			m.Error = "it belongs to the user of an isolated profile; rename it back, or give it to the agent's user: hinit isolate apply " + name
		case running[name]:
			m.Error = "its gateway runs; stop it: hinit stop " + name
		default:
			w := owntree.Walk{DryRun: dry}
			if expected != 0 || to.Keeps(uid) { // the agent's user can have renamed the home to get its files
				home, was, err := volume.OpenHome(options.Tenants, d, name, expected, "isolate apply")
				if err != nil {
					m.Error = err.Error()
					break
				}
				uid = was // the home that moves must have this owner
				_ = home.Close()
			}
			if err := volume.MoveHome(d, name, uid, to.AllowingUID(uid), tenant, &w); err != nil || w.Failed > 0 {
				m.Error = fmt.Sprintf("%d files failed: %v", w.Failed, err)
			}
			m.Changed, m.Left = w.Changed, w.Refused+w.Mounts
		}
		moves = append(moves, m)
	}
	return moves, nil
}

// openHome opens the home of a profile as the user of the process, see [volume.OpenHome].
func (m *manager) openHome(name string, expected int) (home *fsutil.Dir, owner uint32, err error) {
	homes, err := fsutil.OpenNoLink(filepath.Join(m.cfg.Home, boot.ProfilesDir), nil)
	if err != nil {
		return nil, 0, err
	}
	defer homes.Close()
	return volume.OpenHome(m.agent.WithTenants(m.cfg).Tenants, homes, name, expected, "profile delete")
}

// isTenant reports whether a uid is in the range for users of profiles.
func (m *manager) isTenant(uid uint32) bool { return m.agent.WithTenants(m.cfg).Tenants.HasUID(uid) }

// emptyHome removes everything except the marker from an open home that belongs to a user of isolation.uids, as this user. Then
// it gives the home to the agent's user, who can remove the home then, but has read no file in it. A home of another user stays
// as it is. An interrupted command can be repeated, because the marker is left.
func (m *manager) emptyHome(home *fsutil.Dir, owner uint32) error {
	if !m.isTenant(owner) {
		return nil
	}
	to := fsutil.Owner{UID: owner, GID: owner, Keep: m.isTenant}
	err := (&owntree.Walk{To: to, RefuseLinked: true}).Give(home, "", true) // root may have made directories in it
	entries, more, listErr := home.ReadSome("", fsutil.MaxNames)
	err = cmp.Or(err, listErr)
	for _, e := range entries {
		if e.Name() != m.store.Marker() {
			err = cmp.Or(err, fsutil.NewActor(fsutil.Identity{UID: owner, GID: owner}).Do(func() error { return home.RemoveAll(e.Name()) }))
		}
	}
	if more && err == nil {
		return m.emptyHome(home, owner)
	}
	if err == nil {
		_, _, err = home.Chown("", fsutil.Owner{UID: m.agent.User.UID, GID: m.agent.User.GID})
	}
	return err
}

// setAside renames a home that an import replaces, if the home belongs to a user of isolation.uids. The import runs as the
// agent's user, and this user can rename such a home, but not replace it. If the import fails, finish renames the home back.
// Otherwise finish removes the home.
func (a *archiver) setAside(name string) (finish func(failed error) error, err error) {
	home, owner, err := a.openHome(name, 0)
	if err != nil || !a.isTenant(owner) {
		return nil, err
	}
	old, at := boot.ProfilesDir+"/.replaced-"+name, boot.ProfilesDir+"/"+name
	inVolume := func(change func(d *fsutil.Dir) error) error {
		return a.store.WithHome(name, func(d *fsutil.Dir, _ string) error { return change(d) })
	}
	finish = func(failed error) error {
		if failed != nil {
			return errors.Join(failed, inVolume(func(d *fsutil.Dir) error { return d.Rename(old, at) }))
		}
		return cmp.Or(a.emptyHome(home, owner), inVolume(func(d *fsutil.Dir) error { return d.RemoveAll(old) }))
	}
	return finish, inVolume(func(d *fsutil.Dir) error { return d.Rename(at, old) })
}
