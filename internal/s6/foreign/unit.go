package foreign

import (
	"strconv"
	"time"

	"hinit/internal/backoff"
	"hinit/internal/s6/formats"
	"hinit/supervisor"
)

const (
	restartDelay = time.Second      // delay between the end of a run, including its finish program, and the next run
	spawnRetry   = time.Minute      // delay after a failed start
	readyEnough  = time.Second      // a run that was ready for at least this long is restarted without a delay
	killGrace    = 10 * time.Second // grace period for a service that is never killed: unused, but the policy must have one
	permanent    = 125              // exit code by which a finish program requests that the service is not restarted
)

func (s *Service) unit(name string, p *Place) supervisor.Unit {
	spec := s.scanner.Identity(p.Root)
	dir, def := p.Path, p.Definition
	if p.Pin != nil { // no other directory can take the place of a pinned one
		dir = "/proc/self/fd/" + strconv.Itoa(int(p.Pin.Fd()))
	}
	spec.Argv, spec.Dir, spec.Pinned = []string{"./" + formats.RunFile, name}, dir, p.Pin != nil
	policy := supervisor.Policy{
		Backoff:    backoff.Policy{Initial: restartDelay, Max: restartDelay, Factor: 1},
		SpawnRetry: spawnRetry,
		StopSignal: def.DownSignal, Grace: def.KillTimeout, KillNever: def.KillTimeout == 0, KillScope: supervisor.ScopeMain, LeaveDescendants: true,
		FinishPolicy:     supervisor.FinishPolicy{Finish: true, FinishTimeout: def.FinishTimeout, PermanentFinish: []int{permanent}},
		ReportsReadiness: def.NotifyFD != 0,
	}
	if policy.KillNever {
		policy.Grace = killGrace
	}
	if policy.ReportsReadiness {
		policy.ReadyRestart = readyEnough // a service that does not report readiness has no ready time
	}
	if def.KillGroup {
		policy.KillScope = supervisor.ScopeGroup
	}
	return supervisor.Unit{
		Name: name, Kind: supervisor.KindService, YieldsToProfile: !p.Root, Policy: policy, NotifyFD: def.NotifyFD,
		Spec:   spec,
		Finish: "./" + formats.FinishFile, OpenDir: p.Pin,
	}
}
