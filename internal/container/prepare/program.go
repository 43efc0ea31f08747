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
	"hinit/internal/container/program"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/logrotate/gzipped"
	"hinit/supervisor"
)

// run is one preparation. The goroutine of the boot owns it, but for hooks.
type run struct {
	*Stage

	ctx      context.Context //nolint:containedctx // of the run
	cfg      *config.Config
	ready    func()
	job      boot.Job
	program  *program.Program
	reported bool
	unusable bool           // the data volume is
	hooks    sync.WaitGroup // those that run
}

// start starts the boot program in the background. The function that it returns waits for that.
func (r *run) start() func() (*program.Program, error) {
	var p *program.Program
	var err error
	done := make(chan struct{})
	guard.Go("starting the boot program", func() {
		defer close(done)
		p, err = program.Start(r.ctx, r.Registry, "hinit/boot", r.job)
	})
	return func() (*program.Program, error) {
		<-done
		return p, err
	}
}

// plant has a boot program of its own fill an empty data directory: a phase of [boot.Prepare].
func (r *run) plant(ctx context.Context, s *boot.Step) error {
	job := r.job
	job.Plant = true
	return r.work(ctx, "hinit/plant", job, func(m boot.Message) {
		switch {
		case m.Report != nil:
			s.Planted = m.Report.Planted
		case m.Agents != nil:
			s.Tell(*m.Agents)
		}
	})
}

// complete has the boot program do the rest of the boot's work, and run the hooks. report is nil for a plain supervisor.
func (r *run) complete(started func() (*program.Program, error), report *boot.Report) (err error) {
	if r.program, err = started(); err == nil {
		if report != nil {
			r.program.Answer(boot.Answer{Report: report})
		}
		err = r.program.Hear(r.ctx, r.take)
	} else {
		err = fmt.Errorf("%w: %w", program.ErrEnded, err)
	}
	r.hooks.Wait()
	r.Status.HooksEnd()
	if !errors.Is(err, program.ErrEnded) || r.cfg.Boot.Strict {
		return err
	}
	r.Status.Add(client.BootStep{Name: "boot program", Error: err.Error()})
	r.Warn("%v — continuing", err)
	if report != nil && !r.reported {
		return r.report(report)
	}
	return nil
}

// take does what the boot program says.
func (r *run) take(m boot.Message) error {
	switch {
	case m.Line != nil:
		r.line(*m.Line)
	case m.Agents != nil:
		pass(r.Agents, *m.Agents)
	case m.Report != nil:
		if err := r.report(m.Report); err != nil {
			return err
		}
		r.program.Answer(boot.Answer{Env: r.Units.AgentEnv(r.cfg)})
	case m.Begin != nil:
		if r.Status.HooksBegin(*m.Begin); *m.Begin > 0 && !r.unusable && !r.Route().Plain && !r.Route().DashboardOnly {
			r.expectProfiles(r.cfg)
		}
	case m.Hook != nil:
		r.hooks.Add(1)
		guard.Go("running a boot step", func() {
			defer r.hooks.Done()
			code, err := r.runHook(*m.Hook)
			answer := boot.Answer{Hook: m.Hook.Number, Code: code}
			if err != nil {
				answer.Err = err.Error()
			}
			r.program.Answer(answer)
		})
	case m.Steps != nil:
		r.Status.HooksEnd()
		r.Status.Add(m.Steps...)
	}
	return nil
}

// report takes over the state of the data volume. It returns when processes may be started. The error is a reason to stop the container.
func (r *run) report(report *boot.Report) error {
	r.reported = true
	r.Status.Add(report.Phases...)
	r.Units.SetHome(report.Home)
	if len(report.Env) > 0 {
		r.Units.SetEnv(proc.SetEnv(r.Units.Env(), report.Env))
	}
	r.Full.Store(report.Full)
	r.Planted.Store(report.Planted)
	r.unusable = report.Unusable
	failed, failing := report.Failed()
	ends, ending := report.Failed("plant", "browser") // the boot steps do the work of the first, and an agent lives without the second
	switch {
	case failing && r.cfg.Boot.Strict:
		return fmt.Errorf("the boot step %q has failed, and boot.strict is set: %s", failed.Name, failed.Error)
	case ending && r.cfg.Image.Stage2Fails == "2":
		return fmt.Errorf("the boot step %q has failed, which ends the boot in this image: %s; S6_BEHAVIOUR_IF_STAGE2_FAILS=0 goes on", ends.Name, ends.Error)
	}
	r.Phase("wait", func() error { // for what began meanwhile
		r.ready()
		return nil
	})
	return nil
}

// runHook runs a hook of the boot as a task of the supervisor, for nothing else may start a process. It returns when nothing of the hook is
// alive.
func (r *run) runHook(h boot.Hook) (int, error) {
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
	if doubt := r.Units.Doubt("the hook "+h.Name, u); doubt != "" {
		r.Warn("%s", doubt)
	}
	name := u.Name
	if err := r.Registry.Register(ctx, u, supervisor.WantUp); err != nil {
		return 0, err
	}
	defer r.Registry.Post(supervisor.Remove{Name: name})
	code, err := supervisor.AwaitTask(ctx, r.Registry, name)
	if ctx.Err() != nil {
		r.Registry.Post(supervisor.Stop{Name: name})
		_, _ = supervisor.AwaitTask(context.Background(), r.Registry, name) // nothing of it is alive then
		return 0, context.Cause(ctx)
	}
	r.Logs.Drain(name) // what it wrote comes before what follows it
	return code, err
}

// Repair has the boot program repair owners: [owners.Work].
func (s *Stage) Repair(ctx context.Context, job boot.Job, take func(boot.Message)) error {
	return s.work(ctx, "hinit/repair", job, take)
}

// Pack has the boot program compress archives: a [gzipped.Packer].
func (s *Stage) Pack(ctx context.Context, logs []gzipped.Archives, young time.Duration) (results []gzipped.Result, err error) {
	job := s.Job(s.Config())
	job.Pack, job.Young = logs, young
	err = s.work(ctx, "hinit/pack", job, func(m boot.Message) { results = m.Packed })
	if err == nil && len(results) != len(logs) {
		err = fmt.Errorf("cannot compress archives: the boot program tells of %d logs, not of %d", len(results), len(logs))
	}
	return results, err
}

// Examine has the boot program examine the data volume, for package volumecheck.
func (s *Stage) Examine(ctx context.Context, take func(boot.Message)) error {
	cfg := s.Config()
	job := s.Job(cfg)
	job.Examine, job.Marker, job.Profiles = true, cfg.Profiles.Marker, cfg.Profiles.Max
	return s.work(ctx, "hinit/examine", job, take)
}

// work has a boot program do a job that needs no answer.
func (s *Stage) work(ctx context.Context, name string, job boot.Job, take func(boot.Message)) error {
	p, err := program.Start(ctx, s.Registry, name, job)
	if err != nil {
		return err
	}
	return p.Hear(ctx, func(m boot.Message) error {
		take(m)
		return nil
	})
}
