package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/notify"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// strangerPause is how long no other stranger is told of after one.
const strangerPause = time.Minute

// giveSocket gives a service the socket on which it tells of itself, where its definition asks for one. Without a place for the socket it counts as
// ready while it runs.
func (c *container) giveSocket(u *supervisor.Unit) {
	cfg := c.cfg.Load()
	s := cfg.Services[u.Name]
	if u.Kind != supervisor.KindService || s.Notify.Protocol != config.NotifySystemd {
		if u.Kind == supervisor.KindService {
			c.notify.Drop(u.Name)
		}
		return
	}
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if u.Spec.Cred != nil {
		uid, gid = u.Spec.Cred.UID, u.Spec.Cred.GID
	}
	dir, err := c.control.Dir(), errors.New("there is no runtime directory; mount a tmpfs on /run")
	path := ""
	if dir != "" {
		path, err = c.notify.Listen(dir, u.Name, uid, gid)
	}
	if err != nil {
		c.Warn("%s cannot say that it is ready, so it counts as ready while it runs: %v", u.Name, err)
		u.Policy.Announces = false
		return
	}
	env := notify.Environ(path, s.Notify.Watchdog)
	u.Spec.Env = proc.SetEnv(u.Spec.Env, env)
	if len(u.Spec.Setup.EnvFiles) > 0 { // they change none of these
		keep := slices.Clone(u.Spec.Setup.Keep)
		for name := range env {
			keep = append(keep, name)
		}
		slices.Sort(keep)
		u.Spec.Setup.Keep = slices.Compact(keep)
	}
}

// told takes what process pid says on the socket of a service. The supervisor knows whose process it is.
func (c *container) told(service string, pid int, m notify.Message) {
	run, err := c.loop.Tell(pid, supervisor.Told{
		Name: service, Ready: m.Ready, Stopping: m.Stopping, Status: m.Status, HasStatus: m.HasStatus, Extend: m.Extend,
	})
	if errors.Is(err, supervisor.ErrStranger) {
		c.tellOfStranger(service, pid)
	}
	if err == nil {
		c.checks.Told(service, run, &m)
	}
}

// tellOfStranger tells now and then of a process that is of no run of the service, or that has ended before anybody could know.
func (c *container) tellOfStranger(service string, pid int) {
	now := time.Now().UnixNano()
	if last := c.lastStranger.Load(); last != 0 && now-last < int64(strangerPause) || !c.lastStranger.CompareAndSwap(last, now) {
		return
	}
	c.loop.Post(supervisor.Remark{Service: service, Text: fmt.Sprintf("a notification of process %d is not taken: it is no process of this service, or has ended", pid)})
}

// outerTime is how long hinit waits for whoever started it to take that the boot is done.
const outerTime = 5 * time.Second

// tellOuter says that the boot is done to whoever started this container and wants to know, as podman --sdnotify=container and systemd do.
func (c *container) tellOuter() {
	path := os.Getenv(notify.SocketVar)
	if path == "" || c.loop.Snapshot().Stopping {
		return
	}
	guard.Go("saying that the boot is done", func() {
		ctx, cancel := context.WithTimeout(context.Background(), outerTime)
		defer cancel()
		err := blocking.Within(ctx, blocking.Foreign, "the notification", func() error { return notify.Send(path, "READY=1") })
		if err != nil {
			c.Warn("cannot say that the boot is done to %s=%q: %v", notify.SocketVar, path, err)
		}
	})
}
