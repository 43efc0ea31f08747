package health

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"hinit/internal/config"
	"hinit/internal/notify"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// unknownSenderInterval is the minimum time between two reports about messages from processes that do not belong to the service.
const unknownSenderInterval = time.Minute

// addNotifySocket gives a service its notification socket (sd_notify(3)), if hinit.yaml asks for one. Without a directory for
// sockets, the service counts as ready while it runs.
func (h *Health) addNotifySocket(u *supervisor.Unit) {
	cfg := h.options.Config()
	s := cfg.Services[u.Name]
	if u.Kind != supervisor.KindService || s.Notify.Protocol != config.NotifySystemd {
		h.notify.CloseSocket(u.Name) // without a socket, CloseSocket does nothing
		return
	}
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if u.Spec.Cred != nil {
		uid, gid = u.Spec.Cred.UID, u.Spec.Cred.GID
	}
	dir, err := h.options.SocketDir(), errors.New("there is no runtime directory; mount a tmpfs on /run")
	path := ""
	if dir != "" {
		path, err = h.notify.Listen(dir, u.Name, uid, gid)
	}
	if err != nil {
		h.options.Warn("%s cannot say that it is ready, so it counts as ready while it runs: %v", u.Name, err)
		u.Policy.ReportsReadiness = false
		return
	}
	env := notify.Environ(path, s.Notify.Watchdog)
	u.Spec.Env = proc.SetEnv(u.Spec.Env, env)
	if len(u.Spec.Setup.EnvFiles) > 0 { // environment files must not override these variables
		keep := slices.AppendSeq(slices.Clone(u.Spec.Setup.ProtectedVars), maps.Keys(env))
		slices.Sort(keep)
		u.Spec.Setup.ProtectedVars = slices.Compact(keep)
	}
}

// handleMessage handles a message that process pid has sent to the notification socket of a service. The supervisor finds the
// run of that process.
func (h *Health) handleMessage(service string, pid int, m notify.Message) {
	run, err := h.options.Loop.HandleNotify(pid, supervisor.NotifyMessage{
		Name: service, Ready: m.Ready, Stopping: m.Stopping, Status: m.Status, HasStatus: m.HasStatus, Extend: m.ExtendTimeout,
	})
	if errors.Is(err, supervisor.ErrForeignProcess) {
		h.reportUnknownSender(service, pid)
	}
	if err == nil {
		h.checks.HandleMessage(service, run, &m)
		if s := h.options.Loop.Snapshot().Find(service); m.LeaseMessage != "" && service == config.LeaseName && s != nil && s.PID == pid {
			h.options.OnLeaseMessage(m.LeaseMessage)
		}
	}
}

// reportUnknownSender reports a message from a process that belongs to no run of the service, at most once in
// unknownSenderInterval. A process that ended before its identification counts too.
func (h *Health) reportUnknownSender(service string, pid int) {
	now := time.Now().UnixNano()
	if last := h.lastUnknownSender.Load(); last != 0 && time.Duration(now-last).Abs() < unknownSenderInterval || !h.lastUnknownSender.CompareAndSwap(last, now) {
		return
	}
	h.options.Loop.Post(supervisor.Remark{Service: service, Text: fmt.Sprintf("a notification of process %d is not taken: it is no process of this service, or has ended", pid)})
}
