package scandir

import (
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// View returns a service as the tools of s6 see it. A service that is parked or can't be started counts as wanted down.
func View(v *supervisor.Service, dir string, normallyUp bool) client.Slot {
	s := client.Slot{
		Name: v.Name, Dir: dir, NormallyUp: normallyUp, Up: v.PID != 0, Started: v.Started, Notifies: v.Announces,
		WantUp:    v.Want == supervisor.WantUp && !v.Permanent,
		Permanent: v.Permanent, Run: v.Run, PID: v.PID, PGID: v.PID, ExitCode: -1,
		Since: v.Turned.UTC(), ReadySince: v.ReadySince.UTC(),
	}
	if s.Up {
		s.Ready, s.Paused = v.Ready && v.Announces, v.Paused
		if !s.Ready {
			s.ReadySince = time.Time{}
		}
		return s
	}
	switch v.State {
	case supervisor.Stopping, supervisor.Killing, supervisor.Finishing:
		s.Finishing = true
	case supervisor.Down, supervisor.Waiting, supervisor.Starting, supervisor.Up, supervisor.Backoff, supervisor.Parked, supervisor.Failed:
	}
	if x := v.LastExit; x != nil {
		s.ExitCode, s.Signal = x.Code, x.Signal
	}
	return s
}
