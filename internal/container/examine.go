package container

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
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/profiles"
)

// examineTime is how long the data volume may take to be examined.
const examineTime = 8 * time.Second

// examiner examines the data volume for clients, once at a time: a volume that hangs holds up one goroutine, however often somebody
// asks. The zero value is ready for use.
type examiner struct {
	mu      sync.Mutex
	ended   chan struct{}   // closed when the examination that is under way has ended; nil for none
	found   client.Findings // by the last one, as far as it has come
	current volumeCheck     // that it is at
}

// volumeCheck is a part of an examination. Run blocks on the disk.
type volumeCheck struct {
	name   string
	silent string // what it means that it does not end
	run    func(*client.Findings)
}

// examine makes checks, or joins those that are under way, and returns what they have found when they are done, or when ctx ends.
func (e *examiner) examine(ctx context.Context, checks []volumeCheck) client.Findings {
	e.mu.Lock()
	if e.ended == nil {
		e.ended, e.found, e.current = make(chan struct{}), nil, checks[0]
		guard.Go("examining the data volume", func() { e.run(checks) })
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

func (e *examiner) run(checks []volumeCheck) {
	for _, c := range checks {
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

// Examine implements control.Core.
func (a core) Examine(ctx context.Context) client.Findings {
	if a.c.route.Load().Plain {
		return nil // it has no data volume
	}
	ctx, cancel := context.WithTimeout(ctx, examineTime)
	defer cancel()
	return a.c.examiner.examine(ctx, a.c.volumeChecks())
}

// volumeChecks are what can be wrong with the data volume. What only reads comes first: a volume that is frozen can be read.
func (c *container) volumeChecks() []volumeCheck {
	cfg := c.cfg.Load()
	hangs := fmt.Sprintf("%q does not answer within %s; look at the disk or the server behind it", cfg.Home, examineTime)
	checks := []volumeCheck{
		{"space", hangs, func(f *client.Findings) {
			var st unix.Statfs_t
			if blocking.Do(blocking.Volume, func() error { return unix.Statfs(cfg.Home, &st) }) != nil {
				return // the others say why
			}
			free := float64(st.Bavail) * float64(st.Bsize) / 1e6
			if free < 100 {
				f.Warning("space", "%.0f MB are free in %q", free, cfg.Home)
			} else {
				f.OK("space", "%.0f MB are free in %q", free, cfg.Home)
			}
		}},
		{"profiles", hangs, func(f *client.Findings) {
			_, warnings, err := profiles.Open(cfg.Home, c.agent.Actor, cfg.Profiles.Marker).Limit(cfg.Profiles.Max).Discover()
			if err != nil {
				f.Failed("profiles", "%v", err)
			}
			for _, w := range warnings {
				f.Warning("profiles", "%s", w)
			}
		}},
	}
	for _, place := range [][2]string{{"home", cfg.Home}, {"logs", cfg.Logs.Dir}} {
		check, dir := place[0], place[1]
		checks = append(checks, volumeCheck{
			check,
			fmt.Sprintf("%q can be read, but a write has taken longer than %s; look at the disk or the server behind it (a volume that is frozen for a backup goes on after: fsfreeze --unfreeze, on the host)", dir, examineTime),
			func(f *client.Findings) {
				if euid := os.Geteuid(); euid != 0 && uint32(euid) != c.agent.User.UID {
					f.Warning(check, "hinit is neither root nor the agent's user, so it can't tell whether the agent can write in %q", dir)
				} else if err := writable(dir, c.agent.Actor); err != nil {
					f.Failed(check, "the agent's user cannot write in %q: %v", dir, err)
				} else {
					f.OK(check, "%s is writable for the agent's user", dir)
				}
			},
		})
	}
	return checks
}

// probeName is the file that is made and removed to see whether a directory is writable.
const probeName = ".hinit-doctor"

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
