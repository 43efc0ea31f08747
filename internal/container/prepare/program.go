package prepare

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/logrotate/gzipped"
	"hinit/supervisor"
)

// preparation is the state of one call of [Preparer.Run]. Only the goroutine of the boot uses it; hooks run beside it.
type preparation struct {
	*Preparer

	ctx            context.Context //nolint:containedctx // context of the run
	cfg            *config.Config
	ready          func()
	job            boot.Job
	program        *bootProgram
	reportReceived bool
	volumeUnusable bool           // the data volume can't be used, so hinit makes only steps that do not need it
	hooks          sync.WaitGroup // counts the running hooks
}

// start starts the boot program in the background. The returned function blocks until the program runs.
func (r *preparation) start() func() (*bootProgram, error) {
	started := sync.OnceValues(func() (*bootProgram, error) { return startProgram(r.ctx, r.Registry, "hinit/boot", r.job) })
	guard.Go("starting the boot program", func() { _, _ = started() })
	return started
}

// fillEmptyHome makes another boot program fill an empty data directory from the image. It is a phase of [boot.Prepare].
func (r *preparation) fillEmptyHome(ctx context.Context, s *boot.Step) error {
	job := r.job
	job.FillFromImage = true
	return r.runJob(ctx, "hinit/plant", job, func(m boot.Message) {
		switch {
		case m.Report != nil:
			s.FilledFromImage = m.Report.FilledFromImage
		case m.AgentLogLine != nil:
			s.Tell(*m.AgentLogLine)
		}
	})
}

// changeTenantOwners calls the boot program, which gives each profile's own user the home of the profile. It is a phase after the
// phases of [boot.Prepare].
func (r *preparation) changeTenantOwners(ctx context.Context, s *boot.Step) error {
	r.changeOwners(ctx, r.job, s.Tell)
	return nil
}

// correctHomeOwner makes the boot program correct the owner of the home of a profile that is about to start. It blocks for at
// most homeOwnerTimeout.
func (s *Preparer) correctHomeOwner(ctx context.Context, profile string) {
	job := s.NewJob(s.Config())
	job.StartingProfile = profile
	s.changeOwners(ctx, job, func(l boot.LogLine) { writeLine(s.AgentLogger, l) })
}

// homeOwnerTimeout is the time limit of correctHomeOwner. The boot program itself stops after 5 s, so only a hung disk reaches
// this limit.
const homeOwnerTimeout = 7 * time.Second

func (s *Preparer) changeOwners(ctx context.Context, job boot.Job, report func(boot.LogLine)) {
	ctx, cancel := context.WithTimeout(ctx, homeOwnerTimeout)
	defer cancel()
	job.ChangeOwners = true
	err := s.runJob(ctx, "hinit/move", job, func(m boot.Message) {
		if m.AgentLogLine != nil {
			report(*m.AgentLogLine)
		}
	})
	if err != nil {
		report(boot.Warning("cannot give homes to the users of their profiles: " + err.Error() + " — continuing"))
	}
}

// finishBoot makes the boot program do the remaining boot steps, including the hooks. started waits for the start of the
// program. report is nil under hinit run, which has no volume.
func (r *preparation) finishBoot(started func() (*bootProgram, error), report *boot.Report) (err error) {
	if r.program, err = started(); err == nil {
		if report != nil {
			r.program.send(boot.Answer{Report: report})
		}
		err = r.program.receive(r.ctx, r.handleMessage)
	} else {
		err = fmt.Errorf("%w: %w", errProgramFailed, err)
	}
	r.hooks.Wait()
	r.Status.HooksEnd()
	if !errors.Is(err, errProgramFailed) || r.cfg.Boot.Strict {
		return err
	}
	r.Status.AddSteps(client.BootStep{Name: "boot program", Error: err.Error()})
	r.Warn("%v — continuing", err)
	if report != nil && !r.reportReceived {
		return r.handleReport(report)
	}
	return nil
}

// handleMessage logs, stores or answers one message of the boot program. An error ends the preparation.
func (r *preparation) handleMessage(m boot.Message) error {
	switch {
	case m.LogLine != nil:
		r.logLine(*m.LogLine)
	case m.AgentLogLine != nil:
		writeLine(r.AgentLogger, *m.AgentLogLine)
	case m.Report != nil:
		if err := r.handleReport(m.Report); err != nil {
			return err
		}
		r.program.send(boot.Answer{Env: r.Units.AgentEnv(r.cfg)})
	case m.HookCount != nil:
		r.Status.SetHookCount(*m.HookCount)
		if *m.HookCount > 0 && !r.volumeUnusable && !r.RunPlan().ServicesOnly && !r.RunPlan().DashboardOnly {
			r.expectProfiles(r.cfg)
		}
	case m.Hook != nil:
		r.hooks.Go(guard.WrapFunc("running a boot step", func() {
			code, err := r.runHook(*m.Hook)
			answer := boot.Answer{HookNumber: m.Hook.Number, HookExitCode: code}
			if err != nil {
				answer.HookError = err.Error()
			}
			r.program.send(answer)
		}))
	case m.Steps != nil:
		r.Status.HooksEnd()
		r.Status.AddSteps(m.Steps...)
	}
	return nil
}

// handleReport handles the report about the data volume. It blocks until processes may be started. An error means that the
// container must stop.
func (r *preparation) handleReport(handleReport *boot.Report) error {
	r.reportReceived = true
	r.Status.AddSteps(handleReport.Phases...)
	r.Units.SetHome(handleReport.Home)
	if len(handleReport.Env) > 0 {
		r.Units.SetEnv(proc.SetEnv(r.Units.Env(), handleReport.Env))
	}
	r.RepairAll.Store(handleReport.RepairEverything)
	r.FilledFromImage.Store(handleReport.FilledFromImage)
	r.volumeUnusable = handleReport.Unusable
	failed, failing := handleReport.FirstFailure()
	// other boot steps can also fill the home, and agents work without a browser
	ends, ending := handleReport.FirstFailure("plant", "browser")
	switch {
	case failing && r.cfg.Boot.Strict:
		return fmt.Errorf("the boot step %q has failed, and boot.strict is set: %s", failed.Name, failed.Error)
	case ending && r.cfg.Image.FailedStepEffect == "2":
		return fmt.Errorf("the boot step %q has failed, which ends the boot in this image: %s; with S6_BEHAVIOUR_IF_STAGE2_FAILS=0 it continues", ends.Name, ends.Error)
	}
	r.RunStep("wait", func() error { // the wait for background work, such as opening the control socket
		r.ready()
		return nil
	})
	if handleReport.RepairEverything { // the agent's user has changed, so agents can't write to their files yet
		r.RunStep("owners", func() error {
			select {
			case <-r.RepairOwners(r.ctx, true):
			case <-time.After(ownerRepairTimeout): // the repair continues in the background
			case <-r.ctx.Done():
			}
			return nil
		})
	}
	if hook := r.Units.SaveRulesHook(r.cfg); hook != nil {
		r.RunStep(hook.Name, func() error { // after a failed hook, the gateways only start a little later
			_, err := r.runHook(*hook)
			r.Status.HooksEnd()
			return err
		})
	}
	return nil
}

// runHook runs a hook as a task of the supervisor, because no other part of PID 1 may start a process. It returns the exit code
// when all processes of the hook have ended.
func (r *preparation) runHook(h boot.Hook) (int, error) {
	ctx := r.ctx
	if h.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, h.Timeout, fmt.Errorf("it took longer than %s", h.Timeout))
		defer cancel()
	}
	r.Status.HookBegins(h.Name, h.Number)
	u, err := r.Units.Hook(r.cfg, h)
	if err != nil {
		return 0, err
	}
	if warning := r.Units.WarnOfProgram("the hook "+h.Name, u); warning != "" && h.Number > 0 { // hook 0 is hinit's own (SaveRulesHook)
		r.Warn("%s", warning)
	}
	name := u.Name
	if err := r.Registry.Register(ctx, u, supervisor.WantUp); err != nil {
		return 0, err
	}
	defer r.Registry.Post(supervisor.Remove{Name: name})
	code, err := supervisor.AwaitTask(ctx, r.Registry, name)
	if ctx.Err() != nil {
		r.Registry.Post(supervisor.Stop{Name: name})
		_, _ = supervisor.AwaitTask(context.Background(), r.Registry, name) // wait until all processes of the hook have ended
		return 0, context.Cause(ctx)
	}
	r.Logs.Drain(name) // write the hook's output before later lines
	return code, err
}

// ownerRepairTimeout is how long the boot waits for the repair of owners after a change of the agent's user. Then the repair
// continues in the background.
const ownerRepairTimeout = 5 * time.Second

// RepairOwners repairs owners in the background until ctx ends. If all is set, it begins with all files. The returned channel
// is closed after this first repair. During the repair of an earlier call, RepairOwners does nothing, and returns a channel
// that is never closed.
func (s *Preparer) RepairOwners(ctx context.Context, all bool) <-chan struct{} {
	repaired := make(chan struct{})
	if s.awaitRepairs != nil && s.awaitRepairs() == nil {
		return repaired
	}
	s.awaitRepairs = ctx.Err
	guard.Go("repairing owners", func() {
		job := s.NewJob(s.Config())
		if all {
			s.OwnerRepairer.RepairAll(ctx, job)
		}
		close(repaired)
		s.OwnerRepairer.RepairWanted(ctx, job)
	})
	return repaired
}

// CompressArchives makes the boot program compress rotated logs. It is a [gzipped.Packer].
func (s *Preparer) CompressArchives(ctx context.Context, logs []gzipped.Archives, young time.Duration) (results []gzipped.Result, err error) {
	job := s.NewJob(s.Config())
	job.CompressLogs, job.MinLogAge = logs, young
	err = s.runJob(ctx, "hinit/pack", job, func(m boot.Message) { results = m.CompressedLogs })
	if err == nil && len(results) != len(logs) {
		err = fmt.Errorf("cannot compress archives: the boot program tells of %d logs, not of %d", len(results), len(logs))
	}
	return results, err
}

// MeasureProfiles makes the boot program measure profiles. work is a constant such as [boot.MeasureDisk]. After an
// error, found has the measurements from before the error.
func (s *Preparer) MeasureProfiles(ctx context.Context, profiles []boot.Gateway, work string) (found []boot.Measurement, err error) {
	job := s.NewJob(s.Config())
	job.Gateways, job.MeasureKind = profiles, work
	at := ""
	err = s.runJob(ctx, "hinit/measure"+work, job, func(m boot.Message) {
		found = append(found, m.Measurements...)
		if m.Examining != nil {
			at = " (at profile " + m.Examining.Check + ")"
		}
	})
	if err != nil {
		err = fmt.Errorf("%w%s", err, at)
	}
	return found, err
}

// runJob starts a boot program for a job that needs no answers, passes each of its messages to take, and blocks until its end.
func (s *Preparer) runJob(ctx context.Context, name string, job boot.Job, take func(boot.Message)) error {
	p, err := startProgram(ctx, s.Registry, name, job)
	if err != nil {
		return err
	}
	return p.receive(ctx, func(m boot.Message) error {
		take(m)
		return nil
	})
}
