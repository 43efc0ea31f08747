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
	pendingFileText = "hinit gives the files of this directory to the agent's user; it removes this file when that is done\n"
	// formerUIDFormat is the format of the second line of RepairPendingFile, with the agent's former uid.
	formerUIDFormat = "uid %d was the agent's\n"
	// mountTimeout is how long the boot waits for mounts among the agent's directories. The boot counts mountPolls sleeps
	// instead of reading a clock, so that a long stop of the whole process (SIGSTOP) counts as a single sleep.
	mountTimeout = time.Second
	mountPolls   = 10
)

// chownHomes gives the files that a gateway needs for its start to the agent's user. It does not descend into directories:
// the repair in the background changes the files there.
func (p *preparer) chownHomes(ctx context.Context, s *Step) error {
	if p.homeIsLink {
		if p.Agent.SwitchesIdentity() {
			s.RefuseSymlink("chown", p.Home)
		}
		return nil
	}
	if p.root == nil {
		return nil
	}
	o := p.newOwnershipPhase(s)
	if end, ok := ctx.Deadline(); ok {
		o.deadline = time.Now().Add(time.Until(end) / 2)
	}
	if err := o.chownHome(); err != nil {
		return err
	}
	there := MayExist(p.root)
	for _, name := range append(slices.Clone(AgentFiles), BootRecordFile) {
		if there(name) {
			o.chownFile(name, "chown")
		}
	}
	dirs := AgentOnlyDirs
	if s.RepairEverything {
		dirs = slices.Concat(AgentOnlyDirs, MixedOwnerDirs)
	}
	for _, rel := range dirs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if there(rel) {
			o.chownDirectory(p.root, rel, "recursive chown")
		}
	}
	if s.RepairEverything {
		// In platforms, only the directory pairing belongs to the agent.
		o.chownDirectory(p.root, "platforms", "chown")
	}
	o.chownLogs(ctx)
	o.chownConfig()
	o.chownMounts(ctx)
	return nil
}

// ownershipPhase is the state of the phase that changes owners.
type ownershipPhase struct {
	*preparer
	step        *Step
	newOwner    fsutil.Owner
	deadline    time.Time // time from which the repair in the background changes the homes instead; zero for no limit
	mountPoints []string  // directories that are mount points, for chownMounts
}

func (p *preparer) newOwnershipPhase(s *Step) *ownershipPhase {
	return &ownershipPhase{preparer: p, step: s, newOwner: p.Owner()}
}

// chownHome gives the data directory to the agent. If another user owned it, or if an earlier repair is unfinished, chownHome
// sets step.RepairEverything. The repair must then examine everything in the directory.
func (o *ownershipPhase) chownHome() error {
	info, err := o.root.Lstat("")
	if err != nil {
		return err
	}
	uid := fsutil.UID(info)
	if uid == o.newOwner.UID || ReadOnly(o.Home) {
		_, o.step.RepairEverything = PendingRepair(o.root)
		return nil
	}
	o.step.Info("Fixing ownership of %s (targeted) to %s (%d)", o.Home, o.User, o.newOwner.UID)
	text := pendingFileText
	// An owner of the data directory who also owns BootRecordFile was the agent under another uid. Any other owner may be a user
	// of the host.
	if mine, err := o.root.Lstat(BootRecordFile); err == nil && uid != 0 && fsutil.UID(mine) == uid {
		text += fmt.Sprintf(formerUIDFormat, uid)
	}
	// Store the mark of the repair before the change of owner. Otherwise a crash of this process or of the machine could lose
	// it. The agent can remove the mark.
	_ = o.root.Remove(RepairPendingFile) // remove the mark of an earlier repair
	_ = o.root.CreateExclusive(RepairPendingFile, []byte(text), 0o644)
	_ = o.root.SyncParentDir(RepairPendingFile)
	// The former owner may even have the uid of a tenant. The directory can't be a tenant's home, because the agent can't move
	// a home to this place.
	if _, _, err := o.root.Chown("", o.newOwner.WithAllowedUID(uid)); err != nil {
		o.step.CannotChown(o.Home)
		_ = o.root.Remove(RepairPendingFile) // no repair could change an owner either, so remove the mark
		return nil
	}
	o.step.RepairEverything = true
	return nil
}

// PendingRepair reads RepairPendingFile, the mark of an unfinished repair. was is the agent's former uid, or 0 if the mark has
// none. pending reports whether a genuine mark exists. The agent can't forge the mark, because root must own the file. The agent
// can't put an old mark back either. A rename or a link sets the ctime of the inode (inode(7)), and a genuine mark's ctime equals
// the time of its last write.
func PendingRepair(root *fsutil.Dir) (was uint32, pending bool) {
	mark, err := root.Lstat(RepairPendingFile)
	if err != nil || fsutil.UID(mark) != 0 || fsutil.Stat(mark).Ctim != fsutil.Stat(mark).Mtim {
		return 0, false
	}
	text, err := root.ReadFile(RepairPendingFile, int64(len(pendingFileText)+64))
	rest, pending := strings.CutPrefix(string(text), pendingFileText)
	if err != nil || !pending {
		return 0, false
	}
	_, _ = fmt.Sscanf(rest, formerUIDFormat, &was) // stays 0 if there is no such line
	return was, true
}

// chownFile gives a file in the data directory to the agent. The file may be a mount point.
func (o *ownershipPhase) chownFile(name, action string) {
	_, _, err := o.root.Chown(name, o.newOwner)
	if errors.Is(err, fsutil.ErrSymlink) {
		o.step.RefuseSymlink(action, o.HomePath(name))
		return
	}
	o.step.ReportChown(o.Home, o.HomePath(name), err)
}

// chownDirectory gives a directory, without its content, to the agent. rel is relative to the open directory in. A mount point
// is queued for chownMounts.
func (o *ownershipPhase) chownDirectory(in *fsutil.Dir, rel, action string) {
	d, err := in.OpenSubdirSameMount(rel)
	switch {
	case errors.Is(err, fsutil.ErrMount):
		o.mountPoints = append(o.mountPoints, rel)
		return
	case errors.Is(err, fsutil.ErrSymlink):
		o.step.RefuseSymlink(action, o.HomePath(rel))
		return
	case err != nil: // rel is missing, or is not a directory
		return
	}
	defer d.Close()
	o.chown(&o.step.StepLog, d, "", o.newOwner)
	if rel == ProfilesDir {
		o.chownProfiles(d)
	}
}

// chownProfiles changes the owners of the profiles' homes in d. At o.deadline it stops, and the repair in the background
// changes the remaining homes.
func (o *ownershipPhase) chownProfiles(d *fsutil.Dir) {
	entries, _, err := d.ReadAtMost("", fsutil.MaxDirNames)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if !o.deadline.IsZero() && time.Now().After(o.deadline) {
			return
		}
		name := e.Name()
		home, err := d.OpenSubdirSameMount(name)
		if errors.Is(err, fsutil.ErrMount) {
			o.mountPoints = append(o.mountPoints, ProfilesDir+"/"+name)
			continue
		}
		if err != nil {
			continue
		}
		o.chownFiles(&o.step.StepLog, home, o.newOwner)
		home.Close()
	}
}

// chownLogs gives the directories of the gateways' logs to the agent.
func (o *ownershipPhase) chownLogs(ctx context.Context) {
	if d, err := o.root.OpenSubdirSameMount("logs"); err == nil { // the boot writes to this directory before the end of the repair
		for _, name := range []string{"container-log", "container-log.1"} {
			o.chown(&o.step.StepLog, d, name, o.newOwner)
		}
		d.Close()
	}
	rel, ok := o.logsRelativeToHome()
	if !ok {
		return
	}
	if !o.step.RepairEverything { // if RepairEverything is set, the repair in the background changes this directory
		o.chownDirectory(o.root, "logs", "chown")
	}
	o.chownDirectory(o.root, rel, "chown")
	d, err := o.root.OpenSubdirSameMount(rel)
	if err != nil {
		return
	}
	defer d.Close()
	entries, _, err := d.ReadAtMost("", fsutil.MaxDirNames)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || ctx.Err() != nil {
			continue
		}
		sub, err := d.OpenSubdirSameMount(e.Name())
		if err != nil {
			continue
		}
		for _, name := range []string{"", "current", "lock"} {
			o.chown(&o.step.StepLog, sub, name, o.newOwner)
		}
		sub.Close()
	}
}

// chownConfig gives config.yaml to the agent, with a mode that keeps other users from reading it (step 8).
func (o *ownershipPhase) chownConfig() {
	info, err := o.root.Lstat(ConfigFile)
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		o.step.RefuseSymlink("chown/chmod", o.HomePath(ConfigFile))
	case info.Mode().IsRegular():
		o.chownFile(ConfigFile, "chown/chmod")
		if d, err := o.openHomeAsAgent(); err == nil { // the agent may have replaced the file, so act as the agent
			// In a rootless container the file may belong to another user. The contract (section 2.1, step 8) ignores the error
			// of chmod.
			_ = d.Chmod(ConfigFile, ConfigFileMode)
			d.Close()
		}
	}
}

// mountSemaphore limits how many mounts are examined at the same time. A dead file server blocks a call for ever, and this
// process can have only a few blocked calls.
var mountSemaphore = make(chan struct{}, 2)

// chownMounts handles the queued mount points in parallel. It skips a mount that does not answer within mountTimeout.
func (o *ownershipPhase) chownMounts(ctx context.Context) {
	waiting := o.mountPoints
	for len(waiting) > 0 && ctx.Err() == nil {
		type outcome struct {
			rel  string
			more []string
		}
		done := make(chan outcome, len(waiting))
		for _, rel := range waiting {
			go func() {
				defer guard.CatchPanic("giving a mount to the agent")
				mine := o.newOwnershipPhase(o.step)
				mountSemaphore <- struct{}{}
				defer func() { <-mountSemaphore }()
				// With blocking.Volume, a call that hangs would delay other work on the volume.
				blocking.Run(blocking.Foreign, func() { mine.chownMount(ctx, rel) })
				done <- outcome{rel, mine.mountPoints}
			}()
		}
		left := waiting
		waiting = nil
		for waited := 0; len(left) > 0 && waited < mountPolls && ctx.Err() == nil; {
			select {
			case got := <-done:
				left = slices.DeleteFunc(slices.Clone(left), func(rel string) bool { return rel == got.rel })
				waiting = append(waiting, got.more...)
			case <-ctx.Done():
			case <-time.After(mountTimeout / mountPolls):
				waited++
			}
		}
		for _, rel := range left {
			o.hangingDirs = append(o.hangingDirs, rel)
			o.step.Warn("%s does not answer and is left alone — continuing", o.HomePath(rel))
		}
	}
}

// chownMount gives a mounted directory to the agent if root owns it, because Docker creates missing directories as root. With
// any other owner, the mount belongs to the host and keeps its owner. chownMount always changes the directory of all profiles
// and the homes in it.
func (o *ownershipPhase) chownMount(ctx context.Context, rel string) {
	d, err := o.root.OpenSubdir(rel)
	if err != nil || ctx.Err() != nil {
		return
	}
	defer d.Close()
	info, err := d.Lstat("")
	if err != nil || ctx.Err() != nil {
		return
	}
	if strings.HasPrefix(rel, ProfilesDir+"/") {
		o.chownFiles(&o.step.StepLog, d, o.newOwner)
		return
	}
	if fsutil.UID(info) == 0 || rel == ProfilesDir {
		o.chown(&o.step.StepLog, d, "", o.newOwner)
	}
	if rel == ProfilesDir && ctx.Err() == nil {
		o.chownProfiles(d)
	}
}
