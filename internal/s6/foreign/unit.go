package foreign

import (
	"strconv"
	"time"

	"hinit/internal/backoff"
	"hinit/internal/s6/formats"
	"hinit/supervisor"
)

const (
	restartDelay = time.Second      // between the end of one run, with its finish program, and the next
	spawnRetry   = time.Minute      // delay after a failed spawn
	readyEnough  = time.Second      // a run that was ready for this long is followed by a restart at once
	killGrace    = 10 * time.Second // grace of a policy that never kills; the policy must have a grace
	permanent    = 125              // exit code of a finish program that asks for no restart
)

func (s *Service) unit(name string, p *Place) supervisor.Unit {
	spec := s.scanner.Identity(p.Root)
	dir, def := p.Path, p.Definition
	if p.Pin != nil { // no other directory can take the place of the pinned one
		dir = "/proc/self/fd/" + strconv.Itoa(int(p.Pin.Fd()))
	}
	spec.Argv, spec.Dir, spec.Pinned = []string{"./" + formats.RunFile, name}, dir, p.Pin != nil
	policy := supervisor.Policy{
		Backoff:    backoff.Policy{Initial: restartDelay, Max: restartDelay, Factor: 1},
		SpawnRetry: spawnRetry,
		StopSignal: def.DownSignal, Grace: def.KillTimeout, KillNever: def.KillTimeout == 0, KillScope: supervisor.ScopeMain, LeaveDescendants: true,
		Finishes:  supervisor.Finishes{Finish: true, FinishTimeout: def.FinishTimeout, PermanentFinish: []int{permanent}},
		Announces: def.NotifyFD != 0,
	}
	if policy.KillNever {
		policy.Grace = killGrace
	}
	if policy.Announces {
		policy.ReadyRestart = readyEnough // otherwise the readiness of a long run is unknown
	}
	if def.KillGroup {
		policy.KillScope = supervisor.ScopeGroup
	}
	return supervisor.Unit{
		Name: name, Kind: supervisor.KindService, Yields: !p.Root, Policy: policy, NotifyFD: def.NotifyFD,
		Spec:   spec,
		Finish: "./" + formats.FinishFile, Pin: p.Pin,
	}
}
