// Package volumecheck examines the data volume for hinit doctor: its free space, its profiles, and whether the agent can write.
//
// It promises an answer in time that says what hangs. A volume that hangs holds up one goroutine, however often somebody asks. The
// package owns it while an examination is under way.
package volumecheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/profiles"
)

const (
	// patience is how long the data volume may take to be examined.
	patience = 8 * time.Second
	// lowSpace is how many bytes must be free for nothing to be said.
	lowSpace = 100e6
	// probeName is the file that is made and removed to see whether a directory is writable.
	probeName = ".hinit-doctor"
)

// Examiner examines one volume, once at a time. Its methods may be called from any goroutine.
type Examiner struct {
	checks []check

	mu      sync.Mutex
	ended   chan struct{}   // closed when the examination that is under way has ended; nil for none
	found   client.Findings // by the last one, as far as it has come
	current check           // that it is at
}

// check is a part of an examination. run blocks on the disk.
type check struct {
	name   string
	silent string // what it means that it does not end
	run    func(*client.Findings)
}

// New makes an Examiner of the volume that a configuration names, for the agent that uses it.
func New(cfg *config.Config, agent boot.Agent) *Examiner {
	return &Examiner{checks: checks(cfg, agent)}
}

// Examine examines the volume, or joins an examination that is under way. It returns when ctx ends or after eight seconds at most,
// with what was found and what does not answer.
func (e *Examiner) Examine(ctx context.Context) client.Findings {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	e.mu.Lock()
	if e.ended == nil {
		e.ended, e.found, e.current = make(chan struct{}), nil, e.checks[0]
		guard.Go("examining the data volume", e.run)
	}
	ended := e.ended
	e.mu.Unlock()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	found := slices.Clone(e.found)
	if e.ended != nil {
		found.Failed(e.current.name, "%s", e.current.silent)
	}
	return found
}

func (e *Examiner) run() {
	for _, c := range e.checks {
		e.mu.Lock()
		e.current = c
		e.mu.Unlock()
		var found client.Findings
		c.run(&found)
		e.mu.Lock()
		e.found = append(e.found, found...)
		e.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.ended)
	e.ended = nil
}

// checks are the possible faults of the data volume. Checks that only read come first: a frozen volume can be read.
func checks(cfg *config.Config, agent boot.Agent) []check {
	hangs := fmt.Sprintf("%q does not answer within %s; look at the disk or the server behind it", cfg.Home, patience)
	list := []check{
		{"space", hangs, func(f *client.Findings) {
			var st unix.Statfs_t
			if blocking.Do(blocking.Volume, func() error { return unix.Statfs(cfg.Home, &st) }) != nil {
				return // the others say why
			}
			free := float64(st.Bavail) * float64(st.Bsize)
			if free < lowSpace {
				f.Warning("space", "%.0f MB are free in %q", free/1e6, cfg.Home)
			} else {
				f.OK("space", "%.0f MB are free in %q", free/1e6, cfg.Home)
			}
		}},
		{"profiles", hangs, func(f *client.Findings) {
			_, warnings, err := profiles.Open(cfg.Home, agent.Homes(cfg.Home), cfg.Profiles.Marker).Limit(cfg.Profiles.Max).Discover()
			if err != nil {
				f.Failed("profiles", "%v", err)
			}
			for _, w := range warnings {
				f.Warning("profiles", "%s", w)
			}
		}},
	}
	for _, place := range [][2]string{{"home", cfg.Home}, {"logs", cfg.Logs.Dir}} {
		name, dir := place[0], place[1]
		silent := fmt.Sprintf("%q can be read, but a write has taken longer than %s; look at the disk or the server behind it (a volume that is frozen for a backup goes on after: fsfreeze --unfreeze, on the host)", dir, patience)
		list = append(list, check{name, silent, func(f *client.Findings) {
			if euid := os.Geteuid(); euid != 0 && uint32(euid) != agent.User.UID {
				f.Warning(name, "hinit is neither root nor the agent's user, so it can't tell whether the agent can write in %q", dir)
			} else if err := writable(dir, agent.Actor); err != nil {
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
	if err := d.Exclusive(probeName, nil, 0o600); err != nil && !errors.Is(err, fs.ErrExist) { // a crash may have left one
		return err
	}
	return d.Remove(probeName)
}
