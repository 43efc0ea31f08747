package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

const (
	pendingText = "hinit gives the files of this directory to the agent's user; it removes this file when that is done\n"
	// pendingWas is the second line of PendingFile. It holds the agent's former uid.
	pendingWas = "uid %d was the agent's\n"
	// mountPatience is the maximum time that the boot waits for mounts among the agent's directories. It is counted in mountSteps
	// steps, so that a pause of this whole process (SIGSTOP) counts as one step at most.
	mountPatience = time.Second
	mountSteps    = 10
)

// giveOwnership makes the agent's user the owner of the files that a gateway needs to start. It does not descend into
// directories; the repair in the background does that.
func (p *preparer) giveOwnership(ctx context.Context, s *Step) error {
	if p.linked {
		if p.Agent.Switches() {
			s.Refuse("chown", p.Home)
		}
		return nil
	}
	if p.root == nil {
		return nil
	}
	o := p.newOwnershipPhase(s)
	if end, ok := ctx.Deadline(); ok {
		o.enough = time.Now().Add(time.Until(end) / 2)
	}
	if err := o.giveHome(); err != nil {
		return err
	}
	there := MayExist(p.root)
	for _, name := range append(slices.Clone(AgentFiles), RecordFile) {
		if there(name) {
			o.giveFile(name, "chown")
		}
	}
	dirs := AlwaysDirs
	if s.Full {
		dirs = slices.Concat(AlwaysDirs, TargetedDirs)
	}
	for _, rel := range dirs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if there(rel) {
			o.giveDirectory(p.root, rel, "recursive chown")
		}
	}
	if s.Full {
		// Change only the directory itself. In it, only the directory pairing belongs to the agent.
		o.giveDirectory(p.root, "platforms", "chown")
	}
	o.giveLogs(ctx)
	o.giveConfig()
	o.giveMounts(ctx)
	return nil
}

// ownershipPhase is the state of the phase that changes owners.
type ownershipPhase struct {
	*preparer
	step   *Step
	to     fsutil.Owner
	enough time.Time // when to leave the other homes to the repair in the background; zero for never
	queued []string  // directories that are mount points, to be handled at the end
}

func (p *preparer) newOwnershipPhase(s *Step) *ownershipPhase {
	return &ownershipPhase{preparer: p, step: s, to: p.Owner()}
}

// giveHome makes the agent the owner of the data directory. If the owner was another user, giveHome sets step.Full: then
// everything in the data directory must be checked.
func (o *ownershipPhase) giveHome() error {
	info, err := o.root.Lstat("")
	if err != nil {
		return err
	}
	uid := fsutil.UID(info)
	if uid == o.to.UID || ReadOnly(o.Home) {
		_, o.step.Full = PendingRepair(o.root)
		return nil
	}
	o.step.Info("Fixing ownership of %s (targeted) to %s (%d)", o.Home, o.User, o.to.UID)
	text := pendingText
	// The former owner may have been the agent with another uid, or a user of the host. If the former owner owns RecordFile,
	// that owner was the agent.
	if mine, err := o.root.Lstat(RecordFile); err == nil && uid != 0 && fsutil.UID(mine) == uid {
		text += fmt.Sprintf(pendingWas, uid)
	}
	// The mark is written before the change of owner, so that it exists if this process crashes between the two. The agent can
	// remove it.
	_ = o.root.Remove(PendingFile) // left by an earlier repair
	_ = o.root.CreateExclusive(PendingFile, []byte(text), 0o644)
	if _, _, err := o.root.Chown("", o.to.AllowingUID(uid)); err != nil { // no tenant: the agent can't rename a home to this place
		o.step.CannotChown(o.Home)
		_ = o.root.Remove(PendingFile) // no repair is needed: other owners can't be changed either
		return nil
	}
	o.step.Full = true
	return nil
}

// PendingRepair reads PendingFile, the mark of an unfinished repair. The first result is the agent's former uid, or 0 if the mark
// has none. The second reports whether the mark is valid. The agent can't forge the mark, because it can't create or write a file
// that root owns. The agent also can't keep the mark and restore it later. A rename or a link sets the ctime of the inode, which
// in a valid mark equals the time of the last write (inode(7)).
func PendingRepair(root *fsutil.Dir) (was uint32, is bool) {
	mark, err := root.Lstat(PendingFile)
	if err != nil || fsutil.UID(mark) != 0 || fsutil.Stat(mark).Ctim != fsutil.Stat(mark).Mtim {
		return 0, false
	}
	text, err := root.ReadFile(PendingFile, int64(len(pendingText)+64))
	rest, is := strings.CutPrefix(string(text), pendingText)
	if err != nil || !is {
		return 0, false
	}
	_, _ = fmt.Sscanf(rest, pendingWas, &was) // stays 0 if the line is missing
	return was, true
}

// giveFile makes the agent the owner of a file in the data directory. The file may be a mount point.
func (o *ownershipPhase) giveFile(name, action string) {
	_, _, err := o.root.Chown(name, o.to)
	if errors.Is(err, fsutil.ErrSymlink) {
		o.step.Refuse(action, o.Path(name))
		return
	}
	o.reportChown(o.Path(name), err)
}

// reportChown reports a failed change of owner, see [StepLog.ReportChown].
func (o *ownershipPhase) reportChown(path string, err error) { o.step.ReportChown(o.Home, path, err) }

// giveDirectory makes the agent the owner of a directory, but not of the directory's content. rel is the path of the directory
// relative to the open directory in. A mount point is queued for giveMounts.
func (o *ownershipPhase) giveDirectory(in *fsutil.Dir, rel, action string) {
	d, err := in.SubOnSameMount(rel)
	switch {
	case errors.Is(err, fsutil.ErrMount):
		o.queued = append(o.queued, rel)
		return
	case errors.Is(err, fsutil.ErrSymlink):
		o.step.Refuse(action, o.Path(rel))
		return
	case err != nil: // the directory is missing, or is not a directory
		return
	}
	defer d.Close()
	_, _, err = d.Chown("", o.to)
	o.reportChown(o.Path(rel), err)
	if rel == ProfilesDir {
		o.chownProfiles(d)
	}
}

// chownProfiles changes the owners of the profiles' homes in d until the budget is used up.
func (o *ownershipPhase) chownProfiles(d *fsutil.Dir) {
	var found []string // the repair in the background handles names beyond this limit
	err := d.EachName("", func(name string, kind fs.FileMode) bool {
		if kind.IsDir() {
			found = append(found, name)
		}
		return len(found) < fsutil.MaxNames
	})
	if err != nil {
		return
	}
	slices.Sort(found)
	for _, name := range found {
		if !o.enough.IsZero() && time.Now().After(o.enough) {
			return
		}
		home, err := d.SubOnSameMount(name)
		if errors.Is(err, fsutil.ErrMount) {
			o.queued = append(o.queued, ProfilesDir+"/"+name)
			continue
		}
		if err != nil {
			continue
		}
		o.giveFiles(&o.step.StepLog, home, o.to)
		home.Close()
	}
}

// giveLogs makes the agent the owner of the directories of the gateways' logs.
func (o *ownershipPhase) giveLogs(ctx context.Context) {
	if d, err := o.root.SubOnSameMount("logs"); err == nil { // the boot writes this log before the repair in the background is done
		for _, name := range []string{"container-log", "container-log.1"} {
			_, _, err := d.Chown(name, o.to)
			o.reportChown(d.Path()+"/"+name, err)
		}
		d.Close()
	}
	rel, ok := o.logsBeneath()
	if !ok {
		return
	}
	if !o.step.Full { // if Full is set, the repair in the background handles this directory
		o.giveDirectory(o.root, "logs", "chown")
	}
	o.giveDirectory(o.root, rel, "chown")
	d, err := o.root.SubOnSameMount(rel)
	if err != nil {
		return
	}
	defer d.Close()
	entries, _, err := d.ReadSome("", fsutil.MaxNames)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || ctx.Err() != nil {
			continue
		}
		sub, err := d.SubOnSameMount(e.Name())
		if err != nil {
			continue
		}
		for _, name := range []string{"", "current", "lock"} {
			_, _, err := sub.Chown(name, o.to)
			o.reportChown(sub.Path(), err)
		}
		sub.Close()
	}
}

// giveConfig makes the agent the owner of config.yaml, and sets its mode so that other users can't read it (step 8).
func (o *ownershipPhase) giveConfig() {
	info, err := o.root.Lstat(ConfigFile)
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		o.step.Refuse("chown/chmod", o.Path(ConfigFile))
	case info.Mode().IsRegular():
		o.giveFile(ConfigFile, "chown/chmod")
		if d, err := o.asAgent(); err == nil { // as the agent, which may have replaced the file
			// Errors are ignored, as the contract (section 2.1, step 8) says: in a rootless container the file may be another user's.
			_, _ = d.Chmod(ConfigFile, ConfigMode)
			d.Close()
		}
	}
}

// mountTurns limits how many mounts are examined at the same time. A dead file server blocks a call forever, and the process can
// have only a limited number of blocked calls.
var mountTurns = make(chan struct{}, 2)

// giveMounts handles the queued directories, which are mount points, in parallel. A mount that does not answer within about
// mountPatience is left alone.
func (o *ownershipPhase) giveMounts(ctx context.Context) {
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
				mine := o.newOwnershipPhase(o.step)
				mountTurns <- struct{}{}
				defer func() { <-mountTurns }()
				// Use blocking.Foreign and not blocking.Volume: a call that hangs here must not delay other work on the
				// volume.
				blocking.Run(blocking.Foreign, func() { mine.giveMount(ctx, rel) })
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
			o.hangingDirs = append(o.hangingDirs, rel)
			o.step.Warn("%s does not answer and is left alone — continuing", o.Path(rel))
		}
	}
}

// giveMount makes the agent the owner of a mounted directory if its owner is root: Docker creates missing directories as root.
// A mount of another owner belongs to the host and stays as it is. But the directory of all profiles, and the homes in it, are
// always changed.
func (o *ownershipPhase) giveMount(ctx context.Context, rel string) {
	d, err := o.root.Sub(rel)
	if err != nil || ctx.Err() != nil {
		return
	}
	defer d.Close()
	info, err := d.Lstat("")
	if err != nil || ctx.Err() != nil {
		return
	}
	if strings.HasPrefix(rel, ProfilesDir+"/") {
		o.giveFiles(&o.step.StepLog, d, o.to)
		return
	}
	if fsutil.UID(info) == 0 || rel == ProfilesDir {
		_, _, err = d.Chown("", o.to)
		o.reportChown(o.Path(rel), err)
	}
	if rel == ProfilesDir && ctx.Err() == nil {
		o.chownProfiles(d)
	}
}
