package health

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/tuning"
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// quotaPeriod is the time between two measurements of the homes of profiles.
	quotaPeriod = time.Minute
	// freeSpacePeriod is the time between two measurements of the free space. When the free space has shrunk by one percent of
	// the file system, hinit measures the homes at once instead of waiting for quotaPeriod.
	freeSpacePeriod = 5 * time.Second
)

// quotaWatch is the state of up to three goroutines, each started when it is first needed. The first enforces disk quotas of
// profiles: it warns, and stops gateways. The second keeps profiles with their own users from taking processors and ports from
// others. The third records the memory of gateways for the next boot.
type quotaWatch struct {
	quotasWatched   atomic.Bool
	statusNotes     atomicMap[string, string]
	lastFreePercent [2]uint64 // free percentage of both file systems at the last call of diskIsLow
	sharesWatched   atomic.Bool
	shareNotes      atomicMap[string, string] // notes about processors and ports, by service
	recordsMemory   atomic.Bool
}

// watchQuotas starts the goroutine for disk quotas if cfg has a quota, and the goroutine for processors and ports if a profile
// has its own user. A later call starts only a goroutine that does not run yet.
func (h *Health) watchQuotas(cfg *config.Config) {
	set := cfg.AnySettings(func(s *config.ProcessSettings) bool { return s.Priority.Quota.IsSet() })
	if set && !h.options.ServicesOnly && h.quota.quotasWatched.CompareAndSwap(false, true) {
		h.runEvery("watching quotas", 0, freeSpacePeriod, func(n int) {
			if h.diskIsLow() || n%int(quotaPeriod/freeSpacePeriod) == 0 {
				h.checkQuotas(false, &h.quota.statusNotes)
			}
		})
	}
	if cfg.AnyMode(config.IsolationUser) && !h.options.ServicesOnly && h.quota.sharesWatched.CompareAndSwap(false, true) {
		confined := true // an earlier init may have left a profile confined
		h.runEvery("sharing processors and ports", 0, freeSpacePeriod, func(int) {
			if confined || resourcesAreScarce() {
				confined = h.checkQuotas(true, &h.quota.shareNotes)
			}
		})
	}
}

// runEvery starts a goroutine that calls fn after a delay, and then once each period until the supervisor ends. n counts the
// calls from 0. doing names the work in the report of a panic.
func (h *Health) runEvery(doing string, delay, period time.Duration, fn func(n int)) {
	guard.Go(doing, func() {
		for n, due := 0, time.After(delay); ; n++ {
			select {
			case <-due:
				due = time.After(period)
				fn(n)
			case <-h.options.Loop.Ended():
				return
			}
		}
	})
}

// diskIsLow measures the data volume and the file system for temporary files. It reports whether one of them is full, or has a
// smaller percentage of free space or inodes than at the last call.
func (h *Health) diskIsLow() (low bool) {
	for i, dir := range [...]string{h.options.Config().Home, os.TempDir()} {
		var st unix.Statfs_t
		if blocking.Do(blocking.Volume, func() error { return unix.Statfs(dir, &st) }) == nil {
			// A file system without a fixed number of inodes, such as btrfs, reports 0 of 0, which counts as 100 % free.
			free := min((st.Bavail+1)*100/(st.Blocks+1), (st.Ffree+1)*100/(st.Files+1))
			low, h.quota.lastFreePercent[i] = low || free < h.quota.lastFreePercent[i] || free == 0, free
		}
	}
	return low
}

// socketSearchThreshold and terminalSearchThreshold are the numbers of open sockets and pseudoterminals that make hinit search
// for their owners.
const socketSearchThreshold, terminalSearchThreshold = 4000, 1000

// resourcesAreScarce reports whether so many processors, ports or pseudoterminals are in use that a profile may lack them.
func resourcesAreScarce() bool {
	var demand procstat.MachineLoad
	blocking.Run(blocking.ShortCalls, func() { demand = procstat.ReadMachineLoad() })
	return demand.Busy(tuning.Processors()) || demand.Sockets >= socketSearchThreshold || demand.Terminals >= terminalSearchThreshold
}

// measureHomes makes the boot program measure the gateways in list. work is a Measure constant of package boot. After the time
// limit it returns an error. An empty list costs nothing.
func (h *Health) measureHomes(limit time.Duration, list []boot.Gateway, work string) ([]boot.Measurement, error) {
	if len(list) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return h.MeasureProfiles(ctx, list, work)
}

// selectGateways describes the gateways that wanted selects, for the boot program. It leaves out the gateway of the default
// profile.
func (h *Health) selectGateways(wanted func(v *supervisor.Service, own config.Priority) bool) (all []boot.Gateway) {
	cfg := h.options.Config()
	services := h.options.Loop.Snapshot().Services
	all = make([]boot.Gateway, 0, len(services))
	for _, v := range services {
		own := cfg.ProfileOf(v.Profile).Priority
		if v.Kind == supervisor.KindGateway && v.Profile != profiles.Default && wanted(v, own) {
			all = append(all, boot.Gateway{
				Service: v.Name, Profile: v.Profile, MainPID: v.PID, RunNumber: v.Run, Isolated: cfg.IsolationOf(v.Profile).IsIsolated(), CPUWeight: own.CPUWeight, HasCPUAffinity: own.CPUAffinity != "",
				Nice:       max(own.Nice, proc.NiceOf(cmp.Or(own.CPUWeight, 100))),
				MemoryRank: priorityRanks[own.Class], Stopped: slices.Contains(v.Needs, supervisor.NeedDisk), Warn: uint64(own.Quota.WarnAbove), Stop: uint64(own.Quota.StopAbove),
			})
		}
	}
	return all
}

// checkQuotas makes the boot program measure the disk usage of profiles or, if share is set, their use of processors and ports.
// The boot program also decides which gateways to stop or restart. checkQuotas passes these decisions to the supervisor, and
// replaces the notes in last. If a measurement fails, the notes of unmeasured profiles stay. It reports whether the result has
// notes, or the program has failed.
func (h *Health) checkQuotas(share bool, last *atomicMap[string, string]) bool {
	notes, work := make(map[string]string), boot.MeasureDisk
	wanted := func(_ *supervisor.Service, own config.Priority) bool { return own.Quota.IsSet() }
	if share {
		work = boot.EnforceShares
		wanted = func(v *supervisor.Service, _ config.Priority) bool {
			return h.options.Config().IsolationOf(v.Profile).Mode == config.IsolationUser
		}
	}
	found, err := h.measureHomes(quotaPeriod, h.selectGateways(wanted), work)
	if err != nil {
		h.options.Loop.Post(supervisor.Remark{Text: "cannot measure what profiles have: " + err.Error(), Key: "quota"})
		maps.Copy(notes, last.all())
	}
	for _, w := range found {
		if w.Note != "" && last.get(w.Service) == "" {
			h.options.Loop.Post(supervisor.Remark{Service: w.Service, Text: w.Note})
		}
		delete(notes, w.Service)
		if w.Note != "" {
			notes[w.Service] = w.Note
		}
		if w.Restart != "" {
			h.options.Loop.Post(supervisor.Unhealthy{Name: w.Service, Run: w.Run, Answer: w.Restart})
		}
		if !share {
			h.options.Loop.Post(supervisor.Hold{Name: w.Service, Reason: w.Hold, Disk: true})
		}
	}
	last.Store(&notes)
	return err != nil || len(notes) > 0
}

// firstRecordDelay is the time from the boot to the first record of the memory of gateways. It is short, so that a container that
// soon fills its memory leaves a record for the next boot. memoryRecordPeriod is the time between further records.
const firstRecordDelay, memoryRecordPeriod = 30 * time.Second, 5 * time.Minute

// HoldBackGateways holds back gateways that would not fit into the container's memory limit. It expects each gateway to use as
// much memory as was recorded before this boot. Call it after the registration of the gateways and before their start. It waits
// for the boot program, and then calls [Health.RecordMemory]. Without a memory limit, it does nothing.
func (h *Health) HoldBackGateways(ctx context.Context) {
	if h.memory.containerMemory().Limit == 0 {
		return
	}
	sheddable := func(v *supervisor.Service, own config.Priority) bool {
		_, is := priorityRanks[own.Class]
		return is && v.Want == supervisor.WantUp
	}
	ctx, cancel := context.WithTimeout(ctx, freeSpacePeriod)
	defer cancel()
	found, err := h.MeasureProfiles(ctx, h.selectGateways(sheddable), boot.MeasureAdmission)
	if err != nil {
		h.options.Warn("cannot tell which gateways have no room: %v; all start — continuing", err)
	}
	had := make(map[string]uint64, len(found))
	for _, w := range found {
		had[w.Service] = w.Bytes
		if w.Hold != "" {
			h.options.Loop.Post(supervisor.Hold{Name: w.Service, Reason: w.Hold})
		}
	}
	h.memory.previousBootMemory.Store(&had)
	h.RecordMemory()
}

// sharedMemory makes the boot program measure the shared memory of each service.
func (h *Health) sharedMemory() []boot.Measurement {
	var running []boot.Gateway
	for _, v := range h.options.Loop.Snapshot().Services {
		running = append(running, boot.Gateway{Service: v.Name, Profile: v.Profile, MainPID: v.PID, RunNumber: v.Run})
	}
	found, _ := h.measureHomes(freeSpacePeriod, running, boot.MeasureSharedMemory) // after a failed search, this memory counts for no service
	return found
}

// RecordMemory starts to record the memory of gateways for the next boot, if the container has a memory limit. A second call
// does nothing. It records nothing while no gateway runs, because another init may then serve the volume.
func (h *Health) RecordMemory() {
	if h.memory.containerMemory().Limit == 0 || !h.quota.recordsMemory.CompareAndSwap(false, true) {
		return
	}
	h.runEvery("recording memory", firstRecordDelay, memoryRecordPeriod, func(int) {
		running := h.selectGateways(func(v *supervisor.Service, _ config.Priority) bool { return v.State == supervisor.Up })
		_, _ = h.measureHomes(quotaPeriod, running, boot.MeasureRecordMemory)
	})
}
