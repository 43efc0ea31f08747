// Package prepare makes the container ready for its first service. It prepares the data volume, and runs the agent's hooks and
// the user's scripts. It also lists the services that the boot will register. After the boot it makes the boot program work on
// the volume: repair owners, measure profiles, compress logs, examine the volume.
//
// A hook runs as a task of the supervisor, because no other part of PID 1 may start a process. The methods run in the goroutine
// of the boot and block on the disk; any goroutine may call [Preparer.Expected]. The package owns a goroutine for each boot
// program, which waits for its exit, and one during an examination.
package prepare

import (
	"context"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/bootstatus"
	"hinit/internal/container/initlog"
	"hinit/internal/container/logs"
	"hinit/internal/container/units"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/notify"
	"hinit/internal/registry"
	"hinit/internal/version"
	"hinit/profiles"
	"hinit/supervisor"
)

// Preparer does the part of the boot before the first service. Later, it makes the boot program work on the volume, for example
// to repair owners.
type Preparer struct {
	*initlog.Logger

	AgentLogger     *initlog.Logger // logger for messages that an agent can cause
	Registry        *registry.Registry
	Status          *bootstatus.Status
	Units           *units.Maker
	Logs            *logs.Logs
	Store           *profiles.Store
	Agent           boot.Agent
	Config          func() *config.Config // returns the present configuration
	RunPlan         func() *boot.RunPlan
	Serves          func() bool // reports whether this init serves the volume
	Started         time.Time   // when the container was started
	OwnerRepairer   *OwnerRepairer
	VolumeExaminer  VolumeExaminer
	RepairAll       atomic.Bool // whether the next repair of owners must examine every file
	FilledFromImage atomic.Bool // whether the data directory was empty, and was filled from the image

	awaitRepairs func() error
}

// CreateParts makes the OwnerRepairer and the VolumeExaminer of a Preparer. Call it after the other exported fields are set.
func (s *Preparer) CreateParts() {
	repair := func(ctx context.Context, job boot.Job, take func(boot.Message)) error {
		return s.runJob(ctx, "hinit/repair", job, take)
	}
	s.OwnerRepairer = newOwnerRepairer(s.AgentLogger, func(text string) { s.Registry.Post(supervisor.Remark{Text: supervisor.ShortenText(text)}) }, repair, s.correctHomeOwner)
	s.VolumeExaminer.runExamination = s.examine
}

// Run prepares the container for its first service (contract, section 2.1). ready blocks until processes may be started. An
// error means that the container must stop.
func (s *Preparer) Run(ctx context.Context, cfg *config.Config, ready func()) error {
	r := &preparation{Preparer: s, ctx: ctx, cfg: cfg, ready: ready, job: s.NewJob(cfg)}
	r.job.Hooks, r.job.EndOnFailedHook, r.job.EndOnFailedScript = boot.ConfiguredHooks(cfg), cfg.Boot.Strict, cfg.Image.FailedStepEffect == "2"
	if r.job.ServicesOnly {
		ready()
		if len(r.job.Hooks) == 0 {
			return nil
		}
		return r.finishBoot(r.start(), nil)
	}
	for _, l := range s.Agent.LogLines {
		s.logLine(l)
	}
	var modes []string
	var wanted, seed bool
	blocking.Run(blocking.Foreign, func() {
		modes = boot.StartRestrictions(boot.ContainerFacts{
			InPod: boot.InPod(os.LookupEnv),
			UID:   os.Geteuid(), Agent: s.Agent.Actor, AgentUID: s.Agent.User.UID, AgentInPasswd: s.Agent.InPasswd, AgentName: cfg.Agent.User,
		})
		wanted, seed = r.job.IsNeeded(), r.job.HasSeed()
	})
	for _, mode := range modes {
		s.Warn("%s", mode)
	}
	var started func() (*bootProgram, error)
	if wanted {
		started = r.start() // start the program in the background, during the preparation of the volume
	}
	var more []boot.Phase
	if seed {
		more = append(more, boot.Phase{Name: "plant", Run: r.fillEmptyHome})
	}
	report := boot.Prepare(ctx, r.job.Options, more...)
	// change the owners of the homes now, so that no tenant has access to the new directories
	if r.job.Options.Tenants.Enabled && !report.HomeIsLink && !report.ReadOnly {
		report.Run(ctx, r.job.Options, []boot.Phase{{Name: "tenants", NeedsVolume: true, Run: r.changeTenantOwners}})
	}
	if started == nil && report.HasSecrets {
		started = r.start()
	}
	var err error
	if started == nil {
		err = r.handleReport(report)
	} else {
		err = r.finishBoot(started, report)
	}
	if err != nil {
		return err
	}
	if cfg.Image.FailedStepEffect == "1" && s.Status.Failed() {
		s.Warn("a boot step has failed, and the boot continues because S6_BEHAVIOUR_IF_STAGE2_FAILS is 1")
	}
	s.logLine(boot.LogLine{Text: boot.SetupComplete})
	return nil
}

// BootOptions returns the options of this container for package boot.
func (s *Preparer) BootOptions(cfg *config.Config) boot.Options {
	tenants := s.Agent.Tenants
	if tenants.Enabled { // tells the store that it can read homes of tenants (profiles with their own users)
		tenants = boot.TenantsOf(cfg, s.Agent.Actor)
	}
	return boot.Options{
		Tenants: tenants, Home: cfg.Home, Logs: cfg.Logs.Dir, User: cfg.Agent.User, Agent: s.Agent.Actor, Env: os.LookupEnv, RepairEverything: s.RepairAll.Load(),
		ImageBuildID: cfg.Image.BuildStamp, ImageFillsHome: cfg.Boot.PreparedBy == config.PreparedByImage, Say: func(l boot.LogLine) { writeLine(s.AgentLogger, l) },
	}
}

// NewJob describes this container to the boot program.
func (s *Preparer) NewJob(cfg *config.Config) boot.Job {
	return boot.Job{
		Options: s.BootOptions(cfg), AgentUser: s.Agent.User, UserInPasswd: s.Agent.InPasswd, Version: version.Get().String(), ServicesOnly: s.RunPlan().ServicesOnly,
		FilledFromImage: s.FilledFromImage.Load(),
	}
}

// logLine writes a line of the boot to the container log. A warning also goes to the status.
func (s *Preparer) logLine(l boot.LogLine) { writeLine(s.Logger, l) }

func writeLine(v *initlog.Logger, l boot.LogLine) {
	v.Print(l.Text)
	if l.Warning {
		v.RememberWarning(l.Text)
	}
}

// LogTimeline logs the duration of the boot and its steps. Time outside of all steps, such as the wait for the control socket,
// appears as the step "other".
func (s *Preparer) LogTimeline() {
	if rest := time.Since(s.Started).Seconds() - show.BootSeconds(s.Status.Steps()); rest > 0 {
		s.Status.AddSteps(client.BootStep{Name: "other", Seconds: rest})
	}
	s.Say("boot: %s", show.BootTimeline(s.Status.Steps()))
}

// RunStep runs a step of the boot, and records its duration and error. After an error the boot continues.
func (s *Preparer) RunStep(name string, fn func() error) { s.Status.AddSteps(s.MeasureStep(name, fn)) }

// MeasureStep runs a step like RunStep, and returns the step without adding it to the status.
func (s *Preparer) MeasureStep(name string, step func() error) client.BootStep {
	start := time.Now()
	err := step()
	p := client.BootStep{Name: name, Seconds: time.Since(start).Seconds()}
	if err != nil {
		p.Error = err.Error()
		s.Warn("%v", err)
	}
	return p
}

// NotifyOuterInit sends READY=1 to the program that started this container, if it accepts such messages (sd_notify(3)). It does
// not block.
func (s *Preparer) NotifyOuterInit() {
	if s.Registry.Snapshot().Stopping {
		return
	}
	guard.Go("saying that the boot is done", func() {
		if err := notify.SendToManager("READY=1"); err != nil {
			s.Warn("cannot say that the boot is done %v", err)
		}
	})
}

// reasonExpected is the reason in the status for a service that the boot has not registered yet.
const reasonExpected = "the boot has not come to it yet"

// ExpectServices makes the status show the services of hinit.yaml until the boot registers them.
func (s *Preparer) ExpectServices(cfg *config.Config) {
	var list []*supervisor.Service
	for _, name := range slices.Sorted(maps.Keys(cfg.Services)) {
		of := cfg.Services[name]
		v := s.expectedService(name, supervisor.KindService, registry.NeedBoot, of.StartsAtBoot())
		v.Command = of.Command
		if of.HasLogFile {
			v.Log = cfg.Logs.Dir + "/" + name + "/current"
		}
		list = append(list, v)
	}
	s.Status.SetExpected(list)
}

func (s *Preparer) expectedService(name string, kind supervisor.Kind, need string, wanted bool) *supervisor.Service {
	want := supervisor.WantDown
	if wanted {
		want = supervisor.WantUp
	}
	return &supervisor.Service{
		Name: name, Kind: kind, State: supervisor.Waiting, Want: want, Reason: reasonExpected, Since: s.Started, Needs: []string{need},
	}
}

// expectProfiles makes the status show the gateways of the profiles until the boot registers them. It reads the profiles in a
// goroutine, during the hooks. After a change by a hook, the status is out of date until the boot reads the profiles.
func (s *Preparer) expectProfiles(cfg *config.Config) {
	s.Status.ExpectLater(func() []*supervisor.Service {
		found, _, err := s.Store.Discover() // the boot itself reports the warnings
		if err != nil {
			return nil
		}
		route := s.RunPlan()
		gateways := make([]*supervisor.Service, 0, len(found))
		for _, p := range found {
			named := route.Supervise && p.Name == route.Profile
			state, _ := s.Store.ReadState(p.Name)
			v := s.expectedService(profiles.SlotName(p.Name), supervisor.KindGateway, registry.NeedProfiles, named || state.ShouldRun())
			u := s.Units.Gateway(cfg, p, nil)
			v.Profile, v.Log, v.Command = p.Name, u.LogFile, u.Spec.Argv
			gateways = append(gateways, v)
		}
		return gateways
	})
}

// Expected returns the services that the boot will register, see [bootstatus.Status.ExpectedServices]; nil after the boot.
func (s *Preparer) Expected(ctx context.Context, all bool) []*supervisor.Service {
	if s.Status.HasEnded() || !s.Serves() {
		return nil
	}
	return s.Status.ExpectedServices(ctx, all)
}
