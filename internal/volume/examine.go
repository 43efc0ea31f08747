package volume

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/fsutil"
	"hinit/profiles"
)

const (
	// checkTimeout is how long a check may take before hinit doctor reports that the volume doesn't answer.
	checkTimeout = 8 * time.Second
	// minFreeBytes is the number of free bytes below which hinit doctor warns.
	minFreeBytes = 100e6
	// minFreeInodes is the number of free inodes below which hinit doctor warns. Each profile needs a few dozen.
	minFreeInodes = 1000
	// probeName is a file that a check creates and removes, to test whether a directory is writable.
	probeName = ".hinit-doctor"
)

// check is one check of the data volume for hinit doctor. run blocks on the disk.
type check struct {
	name        string
	hangFinding string // the finding to report if run never returns
	run         func(*client.Findings)
}

// examine checks the data volume for hinit doctor. It sends a message to PID 1 before and after each check, so that PID 1 knows
// which check hangs.
func (p *bootProgram) examine(o Options, job boot.Job) {
	for _, c := range checks(o, job) {
		p.send(boot.Message{Examining: &boot.Examining{Check: c.name, Silent: c.hangFinding}})
		var found client.Findings
		c.run(&found)
		p.send(boot.Message{Findings: found})
	}
}

// checks returns the checks of the data volume. Checks that only read come first, because they succeed even on a frozen volume.
func checks(o Options, job boot.Job) []check {
	agent := boot.Agent{Actor: o.Agent, Tenants: o.Tenants}
	hangs := fmt.Sprintf("%q does not answer within %s; look at the disk or the server behind it", o.Home, checkTimeout)
	list := []check{
		{"space", hangs, func(f *client.Findings) {
			var st unix.Statfs_t
			if blocking.Do(blocking.Volume, func() error { return unix.Statfs(o.Home, &st) }) != nil {
				return
			}
			free, files, say := float64(st.Bavail)*float64(st.Bsize), "", f.OK
			if st.Files > 0 && st.Ffree < minFreeInodes { // some file systems have no limit, and report 0
				files = fmt.Sprintf(", but only %d files more can be made", st.Ffree)
			}
			if free < minFreeBytes || files != "" {
				say = f.Warning
			}
			say("space", "%.0f MB are free in %q%s", free/1e6, o.Home, files)
		}},
		{"profiles", hangs, func(f *client.Findings) {
			_, warnings, err := profiles.Open(o.Home, agent.HomesActor(o.Home), job.ProfileMarker).SetMaxProfiles(job.MaxProfiles).Discover()
			if err != nil {
				f.Failed("profiles", "%v", err)
			}
			for _, w := range warnings {
				f.Warning("profiles", "%s", w)
			}
		}},
		{"isolation.uids", hangs, func(f *client.Findings) {
			if _, warning := OwnersOutside(o.Options); warning != "" {
				f.Warning("isolation.uids", "%s", warning)
			}
			if text, err := os.ReadFile("/proc/thread-self/schedstat"); o.Tenants.Enabled && (err != nil || strings.HasPrefix(string(text), "0 0 ")) {
				f.Warning("isolation.processors", "the kernel does not tell which processes wait for a processor (schedstat), so hinit keeps no profile from taking those of others; use cpu.weight with a writable control group")
			}
		}},
	}
	for _, place := range [][2]string{{"home", o.Home}, {"logs", o.Logs}} {
		name, dir := place[0], place[1]
		silent := fmt.Sprintf("%q can be read, but a write has taken longer than %s; look at the disk or the server behind it (to thaw a volume that is frozen for a backup, run on the host: fsfreeze --unfreeze)", dir, checkTimeout)
		list = append(list, check{name, silent, func(f *client.Findings) {
			if euid := os.Geteuid(); euid != 0 && uint32(euid) != job.AgentUser.UID {
				f.Warning(name, "hinit is neither root nor the agent's user, so it can't tell whether the agent can write in %q", dir)
			} else if err := writable(dir, o.Agent); err != nil {
				f.Failed(name, "the agent's user cannot write in %q: %v", dir, err)
			} else {
				f.OK(name, "%s is writable for the agent's user", dir)
			}
		}})
	}
	return list
}

func writable(dir string, actor *fsutil.Actor) error {
	d, err := fsutil.OpenDir(dir, actor)
	if err != nil {
		return err
	}
	defer d.Close()
	return cmp.Or(d.Replace(probeName, nil, fsutil.ReplaceOptions{Mode: 0o600, NoSync: true}), d.Remove(probeName))
}
