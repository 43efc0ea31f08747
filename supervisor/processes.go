package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/internal/guard"
	"hinit/internal/proc"
)

// This file starts, signals and reaps processes for the loop.

// spawn starts the main process of a run, and returns Spawned or SpawnFailed.
func (l *Loop) spawn(a Spawn) Event {
	u := l.units[a.Name]
	if l.cfg.CheckStart != nil {
		if err := l.cfg.CheckStart(a.Name, u.Kind); err != nil {
			return SpawnFailed{Name: a.Name, Error: err.Error(), Temporary: true, Code: 126}
		}
	}
	var notify *readinessPipe
	if u.NotifyFD != 0 {
		var err error
		if notify, err = newReadinessPipe(u.NotifyFD); err != nil {
			return SpawnFailed{Name: a.Name, Error: err.Error(), Code: 126}
		}
		defer notify.closeWriter()
	}
	u.LastSpec = nil
	answer := l.startProcess(u, a.Run, u.Spec, oomAdj[u.Kind], notify)
	if _, up := answer.(Spawned); up && notify != nil {
		l.watchReadiness(a.Run, notify)
	} else {
		notify.close()
	}
	return answer
}

// spawnFinish starts the finish command of a service, and returns Spawned or SpawnFailed.
func (l *Loop) spawnFinish(a SpawnFinish) Event {
	u := l.units[a.Name]
	if u.FinishProgram == "" {
		return SpawnFailed{Name: a.Name, Error: "none is defined", Code: 127}
	}
	code := a.Exit.Code
	if a.Exit.Signal != 0 {
		code = 256 // s6 passes 256 to the finish script after a signal
	}
	u.lastFinishRun = a.Run
	spec := u.Spec
	spec.Path, spec.Argv = "", []string{u.FinishProgram, strconv.Itoa(code), strconv.Itoa(a.Exit.Signal), a.Name, strconv.Itoa(a.Exit.PID)}
	return l.startProcess(u, a.Run, spec, expendableOOMAdj, nil)
}

// spawnStopCommand starts the stop command of a service. It returns StopCommandEnded if the command can't be started.
func (l *Loop) spawnStopCommand(a SpawnStop) []Event {
	u := l.units[a.Name]
	spec := u.Spec
	spec.Path, spec.Argv = "", u.Policy.StopCommand
	if failed, is := l.startProcess(u, a.Run, spec, expendableOOMAdj, nil).(SpawnFailed); is {
		return []Event{StopCommandEnded{Name: a.Name, Run: a.Run, Fault: "cannot be run: " + ShortenText(failed.Error)}}
	}
	return nil
}

// startProcess starts a process of a service, and returns Spawned or SpawnFailed.
func (l *Loop) startProcess(u *unit, run uint64, spec proc.Spec, oom int, notify *readinessPipe) Event {
	files, own, err := l.openFiles(u)
	if err != nil {
		return SpawnFailed{Name: u.Name, Error: err.Error(), Code: 126}
	}
	defer closeAll(own...)
	spec.ID, spec.Name, spec.Files, spec.OOMIncrease = run, u.Name, notify.addTo(files), cmp.Or(spec.OOMIncrease, oom)
	pid, err := l.cfg.Procs.Spawn(spec)
	if err != nil {
		failed := SpawnFailed{Name: u.Name, Error: err.Error(), Code: 126}
		if bad := (*proc.SpawnError)(nil); errors.As(err, &bad) {
			failed.Code, failed.Permanent, failed.Temporary = bad.ShellCode(), bad.Permanent(), bad.Temporary()
		}
		return failed
	}
	l.runs[run] = u.Name
	return Spawned{u.Name, pid}
}

// signalRun sends a signal to the processes of a run that a.Scope selects. It returns the events that follow: RunEnded if no
// process of the tree is alive, or DescendantsEnded.
func (l *Loop) signalRun(a Signal) []Event {
	procs := l.cfg.Procs
	switch a.Scope {
	case ScopeTree:
		if procs.SignalTree(a.Run, a.Signal) == 0 {
			return []Event{RunEnded{a.Name, a.Run}}
		}
		if n := l.orphansEnded[a.Run]; n > 0 && a.Signal == sigKill {
			return []Event{DescendantsEnded{a.Name, a.Run, n}}
		}
	case ScopeGroup:
		_ = procs.SignalGroup(a.Run, a.Signal)
	case ScopeMain:
		if !l.machine.Stopping() { // a shutdown kills all processes, including unrecorded ones
			// Record the descendants while their parent lives, so that a later stop finds those that leave the process group.
			procs.RecordMembers(a.Run)
		}
		_ = procs.Signal(a.Run, a.Signal) // a process that has ended but is not reaped is no error: its exit follows
		if a.Wake {
			_ = procs.Signal(a.Run, sigCont)
		}
	}
	return nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close() // An error of Close loses no data, because hinit writes nothing to these files.
	}
}

// reap reaps all ended processes, feeds the exits of services to the machine, and counts the rest as orphans.
func (l *Loop) reap() {
	if k := &l.oomKills; l.cfg.OOMKills != nil && time.Since(k.sampledAt) >= oomSamplePeriod {
		k.previous, k.sampled, k.sampledAt = k.sampled, l.cfg.OOMKills(), time.Now()
	}
	before := l.orphans.Load()
	childless := l.cfg.Procs.Reap(!l.machine.Stopping(), l.handleExit)
	if l.cfg.MuteSIGCHLD != nil && l.flood.recordReap(time.Now(), int(l.orphans.Load()-before), !l.machine.Stopping()) {
		l.cfg.MuteSIGCHLD(l.flood.active)
		if !l.flood.active { // processes may have ended while SIGCHLD was off
			childless = l.cfg.Procs.Reap(!l.machine.Stopping(), l.handleExit)
		}
	}
	if len(l.lingeringRuns) > 0 {
		for _, id := range l.cfg.Procs.EndedRuns(l.lingeringRuns) {
			l.forgetRun(id)
		}
	}
	if childless && l.machine.Stopping() {
		l.step(NoChildrenLeft{})
	}
}

// handleExit handles one reaped process. For a process of a service, it finds out whether the kernel killed the process for
// lack of memory. It then asks for the last lines of the log, and feeds an Exited event to the machine.
func (l *Loop) handleExit(x proc.Exit) {
	name, owned := l.runs[x.ID]
	if !owned {
		l.orphans.Add(1)
		if x.OrphanRun != 0 {
			l.orphansEnded[x.OrphanRun]++
		}
		return
	}
	u := l.units[name]
	e := Exited{
		Name: name, PID: x.PID, Code: x.Code, Signal: x.Signal, Leftover: x.Leftover, MaybeMembers: formatPIDs(x.PossibleMembers),
		CPU: x.CPU, MaxRSS: x.MaxRSS,
	}
	recent := true
	if k := &l.oomKills; l.cfg.OOMKills != nil {
		kills := l.cfg.OOMKills()
		recent = kills > k.previous
		e.OOM = recent && x.Signal == sigKill && kills > k.explainedUpTo
		if e.OOM { // this kill must not explain another exit, but the other kills must
			kills = max(k.explainedUpTo, k.previous) + 1
		}
		k.explainedUpTo = kills
	}
	if x.OOM != nil { // the counter of the control group of the run is more precise than cfg.OOMKills
		e.OOM = *x.OOM && recent
	}
	s := l.machine.services[name]
	stops := s != nil && s.stopCommand.run == x.ID
	if x.Leftover && (s == nil || stops || !s.policy.LeaveDescendants) {
		l.lingeringRuns = append(l.lingeringRuns, x.ID)
	} else { // Descendants are gone, or the policy lets them stay. Waiting for their end would cost a scan of /proc for each orphan.
		delete(l.runs, x.ID)
		l.cfg.Procs.Forget(x.ID)
	}
	if stops {
		ended := StopCommandEnded{Name: name, Run: x.ID, Leftover: x.Leftover}
		if x.Code != 0 {
			ended.Fault = "has failed: " + describeExit(&Exit{Code: x.Code, Signal: x.Signal})
		}
		l.step(ended)
		return
	}
	if n := l.readinessPipes[x.ID]; n != nil {
		delete(l.readinessPipes, x.ID)
		n.close()
	}
	// this request must precede the step, which may start the next run and so add its output
	if u != nil && !u.Stdio && u.lastFinishRun != x.ID {
		id := x.ID
		l.cfg.Logs.Tail(name, func(lines []string) {
			guard.Go("handing on last lines", func() { l.Post(LastLines{name, id, lines}) }) // Post may wait for the loop
		})
	}
	l.step(e)
}

// oomKillSamples stores earlier values of Config.OOMKills, the number of out-of-memory kills in the container. A kill explains
// only an exit within the next seconds: the victim may have been a child whose parent ends much later.
type oomKillSamples struct {
	explainedUpTo uint64    // kills counted up to this number do not explain later exits
	sampled       uint64    // value at the newest sample
	previous      uint64    // value at the sample before the last; kills counted by then are too old to explain an exit
	sampledAt     time.Time // time of the last sample
}

// oomSamplePeriod is the minimum time between two samples. The kernel ends a killed process in less time.
const oomSamplePeriod = 10 * time.Second

// formatPIDs lists PIDs for a message to people, at most eight of them.
func formatPIDs(pids []int) string {
	const limit = 8
	text := strings.ReplaceAll(strings.Trim(fmt.Sprint(pids[:min(len(pids), limit)]), "[]"), " ", ", ")
	if n := len(pids) - limit; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// forgetRun forgets a run whose processes have all ended, and reports RunEnded to the machine.
func (l *Loop) forgetRun(id uint64) {
	name := l.runs[id]
	delete(l.runs, id)
	delete(l.orphansEnded, id)
	l.lingeringRuns = slices.DeleteFunc(l.lingeringRuns, func(other uint64) bool { return other == id })
	l.cfg.Procs.Forget(id)
	l.step(RunEnded{name, id})
}
