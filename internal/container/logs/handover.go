package logs

import (
	"path/filepath"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/runs"
	"hinit/logrotate"
	"hinit/supervisor"
)

// Handover is the state of the logs, and of the commands that clients run, at re-execution.
type Handover struct {
	Logs *logrotate.Handover
	Runs *runs.Handover // nil if the old program is too old to run commands of clients
}

// HandOver returns the state that the program after a re-execution needs. The logs must be frozen.
func (l *Logs) HandOver() (old Handover, err error) {
	old.Runs = l.Runs.HandOver()
	old.Logs, err = l.Set.HandOver()
	return old, err
}

// TakeOver makes the new logs continue the old logs. services are the services that the supervisor knows.
func (l *Logs) TakeOver(old Handover, services []*supervisor.Service) error {
	if err := l.Set.TakeOver(old.Logs); err != nil {
		return err
	}
	l.Runs.TakeOver(old.Runs)
	for _, s := range services {
		if s.Kind != supervisor.KindRun && s.Kind != supervisor.KindCheck { // package logs keeps no logs of runs and checks
			l.Open(s.Name, s.Profile, s.Log, s.Kind)
		}
	}
	return nil
}

// StoreReport stores the report of a fault in the directory of the logs, as the agent's user, and returns its path.
func (l *Logs) StoreReport(name string, report []byte) (path string, err error) {
	dir := filepath.Join(l.o.Config().Home, "logs")
	d, _, err := fsutil.MakeReal(dir, 0o755, l.o.Actor.Limited(blocking.Volume))
	if err != nil {
		return "", err
	}
	defer d.Close()
	_, err = d.Append(name, report, 0o640)
	return filepath.Join(dir, name), err
}
