package container

import (
	"context"
	"os"
	"runtime"
	"slices"
	"time"

	"hinit/client"
	"hinit/internal/control"
	"hinit/internal/tuning"
	"hinit/supervisor"
)

// controlBackend returns the functions by which the control API reads and changes this container.
func (c *container) controlBackend() control.Backend {
	return control.Backend{
		Loop: c.loop, StartRun: c.registry.StartRun, Runs: c.logs.Runs,
		Command: c.gateways.Command, Rescan: c.gateways.Rescan, Reload: c.registry.ReloadWithTimeout, Examine: c.examine, Reexec: c.reexec,
		FindProfile: func(ctx context.Context, name string) error {
			if err := c.lease.Check(); err != nil {
				return &client.Error{Kind: client.KindFailed, Message: err.Error(), Cause: err}
			}
			return c.gateways.FindProfile(ctx, name)
		},
		Config:     func() []client.ConfigEntry { return c.cfg.Load().Effective() },
		Init:       c.describeInit,
		SettleTime: func() time.Duration { return c.cfg.Load().Agent.SettleTime },
		Boot: control.Boot{
			AwaitBoot: func(ctx context.Context, pid int) error { return c.boot.AwaitEnd(ctx, pid, c.loop.Snapshot) }, ExpectedServices: c.preparer.Expected,
			BootProgress: func() (bool, *client.BootHook) { return !c.boot.HasEnded(), c.boot.HookProgress() },
		},
		ServiceFacts: control.ServiceFacts{
			Output: c.logs.Output, Checks: c.health,
			Note: func(v *supervisor.Service) string {
				note := c.gateways.StatusRemark(v)
				if v.State == supervisor.Up && note == "" {
					return c.health.StatusRemark(v)
				}
				return note
			},
			ServiceConfig: c.registry,
		},
		Gateways: control.Gateways{ServedBy: c.gateways.ServedBy, SetOwnGatewayAllowed: c.gateways.SetOwnGatewayAllowed, Topology: c.gateways.ChangeTopology},
		S6Slots: func() control.Slots {
			if s6 := c.s6.S6(); s6 != nil {
				return s6
			}
			return nil
		},
	}
}

func (c *container) describeInit() client.Init {
	plain := ""
	if c.runPlan.Load().ServicesOnly {
		plain = c.cfg.Load().Path
	}
	own, agents := c.boot.Warnings()
	info := client.Init{
		ServicesFile: plain,
		PID:          os.Getpid(), Version: c.generation.Version, StartedAt: c.startedAt, Home: c.cfg.Load().Home,
		Subreaper: os.Getpid() != 1, Goroutines: runtime.NumGoroutine(), Booting: !c.boot.HasEnded(), Hook: c.boot.HookProgress(),
		Binary: c.generation.Exe, BinaryID: c.generation.ID, Generation: c.generation.Number, ReexecError: c.generation.Refusal(),
		Warnings: slices.Concat(own, agents, c.gateways.Warnings()), Boot: c.boot.Steps(), BootProfiles: c.boot.ProfilesProgress(c.gateways.CountGateways()), Repair: c.preparer.OwnerRepairer.Status(),
	}
	for _, warning := range append(c.logs.ConsoleFaults(), tuning.ProcessesUsedUp(c.mainPIDs), c.loop.Snapshot().HoldReason) {
		if warning != "" {
			info.Warnings = append(info.Warnings, warning)
		}
	}
	if c.runPlan.Load().HasProfiles() {
		info.Lease = c.lease.Status()
	}
	return info
}

// mainPIDs returns the PID of the main process of each service, by the name of the service; 0 if the service is not running.
func (c *container) mainPIDs() map[string]int {
	leaders := make(map[string]int)
	for _, s := range c.loop.Snapshot().Services {
		leaders[s.Name] = s.PID
	}
	return leaders
}

func (c *container) examine(ctx context.Context) client.Findings {
	if c.runPlan.Load().ServicesOnly {
		return nil
	}
	return c.preparer.VolumeExaminer.Examine(ctx)
}
