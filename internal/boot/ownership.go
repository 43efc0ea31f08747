package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/boot/kept"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// The agent's files beneath the data directory (contract, section 2.1, steps 5 to 8).
var (
	// alwaysDirs hold only the agent's own state and are checked at every boot.
	alwaysDirs = []string{"profiles", "cron", "pairing", "platforms/pairing", ".hinit"}
	// targetedDirs are checked when the whole data directory was somebody else's. They may hold others' files on purpose.
	targetedDirs = []string{
		"sessions", "logs", "hooks", "memories", "skills", "skins", "plans", "workspace", "home", "lazy-packages",
		"state", "backups", // not in the contract's list: the gateway and this boot make them there
	}
	// agentFiles are the agent's files in the data directory; any other may be the host's.
	agentFiles = []string{
		"auth.json", "auth.lock", ".env", "state.db", "state.db-shm", "state.db-wal", "hermes_state.db", "response_store.db",
		"response_store.db-shm", "response_store.db-wal", "gateway.pid", "gateway.lock", "gateway_state.json", "processes.json",
		"active_profile", kept.RecordFile,
	}
)

const (
	configFile   = "config.yaml"
	profilesName = "profiles"
	pendingText  = "hinit gives the files of this directory to the agent's user; it removes this file when that is done\n"
	// pendingWas, with a uid, is the line after it where the agent had another uid before.
	pendingWas = "uid %d was the agent's\n"
	// mountPatience is how long the boot waits for mounts among the agent's directories, in several steps: a process that was
	// paused finds only one of them over.
	mountPatience = time.Second
	mountSteps    = 10
)

func (o Options) owner() fsutil.Owner {
	id := o.Agent.Identity()
	return fsutil.Owner{UID: id.UID, GID: id.GID, KeepLinked: !fsutil.HardLinksProtected()}
}

func rawStat(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

func ownerUID(info fs.FileInfo) uint32 { return rawStat(info).Uid }

// ownership makes the agent's user the owner of the files that a gateway needs to start, without recursion.
func (p *preparer) ownership(ctx context.Context, s *step) error {
	if p.linked {
		if p.Agent.Switches() {
			s.refuse("chown", p.Home)
		}
		return nil
	}
	if p.root == nil {
		return nil
	}
	o := &owning{preparer: p, step: s, to: p.owner()}
	if end, ok := ctx.Deadline(); ok {
		o.enough = time.Now().Add(time.Until(end) / 2)
	}
	if err := o.homeItself(); err != nil {
		return err
	}
	there := names(p.root)
	for _, name := range agentFiles {
		if there(name) {
			o.top(name, "chown")
		}
	}
	dirs := alwaysDirs
	if s.full {
		dirs = slices.Concat(alwaysDirs, targetedDirs)
	}
	for _, rel := range dirs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if there(rel) {
			o.directory(p.root, rel, "recursive chown")
		}
	}
	if s.full {
		o.directory(p.root, "platforms", "chown") // the directory alone; only pairing in it is listed
	}
	o.logs(ctx)
	o.config()
	o.mounts(ctx)
	return nil
}

// owning is the work of that phase.
type owning struct {
	*preparer
	step   *step
	to     fsutil.Owner
	queued []string  // directories, relative, that are mount points
	enough time.Time // when the homes that are left are for the repair in the background; zero for never
}

// homeItself gives away the data directory, and decides whether everything in it has to be checked.
func (o *owning) homeItself() error {
	info, err := o.root.Lstat("")
	if err != nil {
		return err
	}
	uid := ownerUID(info)
	if uid == o.to.UID || readOnly(o.Home) {
		_, o.step.full = pending(o.root)
		return nil
	}
	o.step.info("Fixing ownership of %s (targeted) to %s (%d)", o.Home, o.User, o.to.UID)
	text := pendingText
	// A host's own user has no record of boot steps: that is made as the agent's.
	if mine, err := o.root.Lstat(kept.RecordFile); err == nil && uid != 0 && ownerUID(mine) == uid {
		text += fmt.Sprintf(pendingWas, uid)
	}
	// Before the change of owner, so that a crash between the two leaves the mark. The agent can remove it.
	_ = o.root.Remove(kept.Pending) // of an earlier repair
	_ = o.root.Exclusive(kept.Pending, []byte(text), 0o644)
	if _, _, err := o.root.Chown("", o.to); err != nil {
		o.step.cannotChown(o.Home)
		_ = o.root.Remove(kept.Pending) // nothing in there could be changed either
		return nil
	}
	o.step.full = true
	return nil
}

// pending reads the mark of an unfinished repair: the uid that the agent had before, 0 for none. The agent can't forge the mark:
// it can neither make a file of root's nor write into one. It can't keep one and bring it back either. A rename or a link changes
// the ctime of the inode, which otherwise is the time of the writing (inode(7)).
func pending(root *fsutil.Dir) (was uint32, is bool) {
	mark, err := root.Lstat(kept.Pending)
	if err != nil || ownerUID(mark) != 0 || rawStat(mark).Ctim != rawStat(mark).Mtim {
		return 0, false
	}
	text, err := root.ReadFile(kept.Pending, int64(len(pendingText)+64))
	rest, is := strings.CutPrefix(string(text), pendingText)
	if err != nil || !is {
		return 0, false
	}
	_, _ = fmt.Sscanf(rest, pendingWas, &was) // without the line it is 0
	return was, true
}

// top gives away a file in the data directory, which may be a mount.
func (o *owning) top(name, action string) {
	_, _, err := o.root.Chown(name, o.to)
	switch {
	case errors.Is(err, fsutil.ErrSymlink):
		o.step.refuse(action, o.path(name))
	default:
		o.chowned(o.path(name), err)
	}
}

// chowned reports the result of a change of owner.
func (o *owning) chowned(path string, err error) {
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, fsutil.ErrSymlink), errors.Is(err, unix.EROFS) && readOnly(o.Home):
	case errors.Is(err, fsutil.ErrHardLink), errors.Is(err, fsutil.ErrDevice):
		o.step.warn("chown %s refused: %v — continuing", path, errors.Unwrap(err))
	default:
		o.step.cannotChown(path)
	}
}

// directory gives away one of the agent's directories itself, or defers it when it is a mount.
func (o *owning) directory(in *fsutil.Dir, rel, action string) {
	d, err := in.SubSame(rel)
	switch {
	case errors.Is(err, fsutil.ErrMount):
		o.queued = append(o.queued, rel)
		return
	case errors.Is(err, fsutil.ErrSymlink):
		o.step.refuse(action, o.path(rel))
		return
	case err != nil: // not there, or no directory
		return
	}
	defer d.Close()
	_, _, err = d.Chown("", o.to)
	o.chowned(o.path(rel), err)
	if rel == profilesName {
		o.profiles(d)
	}
}

// inTime ends a walk when the homes that are left are for the repair in the background.
func (o *owning) inTime() error {
	if !o.enough.IsZero() && time.Now().After(o.enough) {
		return errTime
	}
	return nil
}

// profiles repairs the profiles' homes until the budget is over.
func (o *owning) profiles(d *fsutil.Dir) {
	var found []string // the repair in the background handles the ones beyond the ceiling
	err := d.EachName("", func(name string, kind fs.FileMode) bool {
		if kind.IsDir() {
			found = append(found, name)
		}
		return len(found) < fsutil.MostNames
	})
	if err != nil {
		return
	}
	slices.Sort(found)
	o.tenants(d)
	for _, name := range found {
		if o.inTime() != nil {
			return // the boot goes on, however many there are
		}
		home, err := d.SubSame(name)
		if errors.Is(err, fsutil.ErrMount) {
			o.queued = append(o.queued, profilesName+"/"+name)
			continue
		}
		if err != nil {
			continue
		}
		o.profile(home, o.ownerOfHome(home))
		home.Close()
	}
}

// profile gives away a profile's home and what its gateway opens first; the rest follows in the background. It skips links
// silently, as the image's script does.
func (o *owning) profile(home *fsutil.Dir, to fsutil.Owner) {
	give := func(rel string) {
		_, _, err := home.Chown(rel, to)
		o.chowned(home.Path()+"/"+rel, err)
	}
	give("")
	there := names(home) // few of these are in any one home, and to ask for each is a call
	for _, name := range slices.Concat(agentFiles, []string{configFile, "SOUL.md"}) {
		if there(name) {
			give(name)
		}
	}
	for _, rel := range slices.Concat(alwaysDirs[1:], targetedDirs) {
		if !there(rel) {
			continue
		}
		if sub, err := home.SubSame(rel); err == nil {
			_, _, err = sub.Chown("", to)
			o.chowned(sub.Path(), err)
			sub.Close()
		}
	}
}

// ownerOfHome returns the owner for what is in a home: the tenant that has the home, else the agent.
func (o *owning) ownerOfHome(home *fsutil.Dir) fsutil.Owner {
	to := o.to
	if info, err := home.Lstat(""); err == nil && o.Tenants.Has(ownerUID(info)) {
		to.UID, to.GID = ownerUID(info), ownerUID(info)
	}
	return to
}

// names lists a directory and returns a function that tells whether a name may be in it. If the listing fails, every name may be.
func names(d *fsutil.Dir) func(rel string) bool {
	entries, err := d.ReadDir("")
	if err != nil {
		return func(string) bool { return true }
	}
	return func(rel string) bool {
		first, _, _ := strings.Cut(rel, "/")
		_, found := slices.BinarySearchFunc(entries, first, func(e fs.DirEntry, name string) int { return strings.Compare(e.Name(), name) })
		return found
	}
}

// logs gives away the directories of the gateways' logs.
func (o *owning) logs(ctx context.Context) {
	if d, err := o.root.SubSame("logs"); err == nil { // the boot log is written before Repair is through
		for _, name := range []string{"container-boot.log", "container-boot.log.1"} {
			_, _, err := d.Chown(name, o.to)
			o.chowned(d.Path()+"/"+name, err)
		}
		d.Close()
	}
	rel, ok := o.logsBeneath()
	if !ok {
		return
	}
	if !o.step.full { // or else it is done
		o.directory(o.root, "logs", "chown")
	}
	o.directory(o.root, rel, "chown")
	d, err := o.root.SubSame(rel)
	if err != nil {
		return
	}
	defer d.Close()
	entries, _, err := d.ReadSome("", fsutil.MostNames)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || ctx.Err() != nil {
			continue
		}
		sub, err := d.SubSame(e.Name())
		if err != nil {
			continue
		}
		for _, name := range []string{"", "current", "lock"} {
			_, _, err := sub.Chown(name, o.to)
			o.chowned(sub.Path(), err)
		}
		sub.Close()
	}
}

// config gives away config.yaml and makes it private (step 8).
func (o *owning) config() {
	info, err := o.root.Lstat(configFile)
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		o.step.refuse("chown/chmod", o.path(configFile))
	case info.Mode().IsRegular():
		o.top(configFile, "chown/chmod")
		o.private(configFile, configMode)
	}
}

// private sets the mode of a file as the agent, who may have put another in its place.
func (p *preparer) private(rel string, mode fs.FileMode) {
	d, err := p.asAgent()
	if err != nil {
		return
	}
	defer d.Close()
	_, _ = d.Chmod(rel, mode) // failures are ignored (contract, section 2.1, step 8): it may be another user's in a rootless container
}

// mountTurns bounds the mounts that are examined at the same time. A dead server blocks one call for ever, and the boot needs a free one.
var mountTurns = make(chan struct{}, 2)

// mounts gives away the deferred directories, all at once, and does not wait long for a dead server.
func (o *owning) mounts(ctx context.Context) {
	waiting := o.queued
	for len(waiting) > 0 && ctx.Err() == nil {
		type outcome struct {
			rel  string
			more []string
		}
		done := make(chan outcome, len(waiting))
		for _, rel := range waiting {
			go func() {
				defer guard.Catch("giving a mount to the agent")
				mine := &owning{preparer: o.preparer, step: o.step, to: o.to}
				mountTurns <- struct{}{}
				defer func() { <-mountTurns }()
				_ = blocking.Do(blocking.Foreign, func() error { // not the share of the volume, which stays free when this hangs
					mine.mount(ctx, rel)
					return nil
				})
				done <- outcome{rel, mine.queued}
			}()
		}
		left := waiting
		waiting = nil
		for waited := 0; len(left) > 0 && waited < mountSteps && ctx.Err() == nil; {
			select {
			case got := <-done:
				left = slices.DeleteFunc(slices.Clone(left), func(rel string) bool { return rel == got.rel })
				waiting = append(waiting, got.more...)
			case <-ctx.Done():
			case <-time.After(mountPatience / mountSteps):
				waited++
			}
		}
		for _, rel := range left {
			o.stuck = append(o.stuck, rel)
			o.step.warn("%s does not answer and is left alone — continuing", o.path(rel))
		}
	}
}

// mount is directory for a mount. Docker makes a missing directory as root, and the agent gets it; another user's mount is the
// host's, except where only profiles can be.
func (o *owning) mount(ctx context.Context, rel string) {
	d, err := o.root.Sub(rel)
	if err != nil || ctx.Err() != nil {
		return
	}
	defer d.Close()
	info, err := d.Lstat("")
	if err != nil || ctx.Err() != nil {
		return
	}
	if strings.HasPrefix(rel, profilesName+"/") {
		o.profile(d, o.ownerOfHome(d))
		return
	}
	if ownerUID(info) == 0 || rel == profilesName {
		_, _, err = d.Chown("", o.to)
		o.chowned(o.path(rel), err)
	}
	if rel == profilesName && ctx.Err() == nil {
		o.profiles(d)
	}
}
