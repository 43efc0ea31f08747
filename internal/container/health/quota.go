package health

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/tuning"
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// quotaPeriod is how often the homes of profiles are measured.
	quotaPeriod = time.Minute
	// freePeriod is how often the free space is looked at. When it has become less by a percent, the homes are measured at once.
	freePeriod = 5 * time.Second
)

// quotaWatch keeps profiles within their quotas: it warns, and it stops gateways. It also keeps profiles with users of their own
// from taking the processors and ports of others. Each of the two tasks has a goroutine from the first such profile on. A third
// one has memory recorded.
type quotaWatch struct {
	begun  atomic.Bool
	notes  notes
	free   [2]uint64 // percent, see diskIsLow
	shared atomic.Bool
	greedy notes // notes about processors
}

// watchQuotas begins to measure with the first configuration that has a quota, or a profile with a user of its own.
func (h *Health) watchQuotas(cfg *config.Config) {
	set := cfg.Agent.Priority.Quota.Set()
	for _, p := range cfg.Profiles.Own {
		set = set || p.Priority.Quota.Set()
	}
	if set && !h.o.Plain && h.quota.begun.CompareAndSwap(false, true) {
		h.watchQuota("watching quotas", func(n int) {
			if h.diskIsLow() || n%int(quotaPeriod/freePeriod) == 0 {
				h.checkQuotas(false, &h.quota.notes)
			}
		})
	}
	if cfg.Isolated(config.IsolationUser) && !h.o.Plain && h.quota.shared.CompareAndSwap(false, true) {
		confined := true // an earlier init may have left a profile confined
		h.watchQuota("sharing processors and ports", func(int) {
			if confined || crowded() {
				confined = h.checkQuotas(true, &h.quota.greedy)
			}
		})
	}
}

// watchQuota calls look every freePeriod, with the number of earlier calls.
func (h *Health) watchQuota(doing string, look func(n int)) {
	guard.Go(doing, func() {
		for tick, n := time.Tick(freePeriod), 0; ; n++ {
			look(n)
			select {
			case <-tick:
			case <-h.o.Loop.Ended():
				return
			}
		}
	})
}

// diskIsLow reports whether the data volume or the file system for temporary files is full, or has less space or fewer inodes
// than at the last call.
func (h *Health) diskIsLow() (low bool) {
	for i, dir := range [...]string{h.o.Config().Home, os.TempDir()} {
		var st unix.Statfs_t
		if blocking.Do(blocking.Volume, func() error { return unix.Statfs(dir, &st) }) == nil {
			free := min(st.Bavail*100/max(1, st.Blocks), st.Ffree*100/max(1, st.Files))
			low = low || free < h.quota.free[i] || free == 0
			h.quota.free[i] = free
		}
	}
	return low
}

// manySockets is the number of open sockets from which on their owners are searched.
const manySockets = 4000

// crowded reports whether the container may lack processors or ports.
func crowded() (is bool) {
	_ = blocking.Do(blocking.Short, func() error {
		load, _ := os.ReadFile("/proc/loadavg")
		network, _ := os.ReadFile("/proc/net/sockstat")
		var average float64
		runnable, sockets := 0, 0 // zero if the kernel does not report them
		_, _ = fmt.Sscanf(string(load), "%f %f %f %d/", &average, &average, &average, &runnable)
		_, _ = fmt.Sscanf(string(network), "sockets: used %d", &sockets)
		is = runnable >= 2*tuning.Processors() || sockets >= manySockets
		return nil
	})
	return is
}

// list describes gateways of named profiles for the boot program. wanted chooses them.
func (h *Health) list(wanted func(v *supervisor.Service, own config.Priority) bool) (all []boot.Weigh) {
	cfg := h.o.Config()
	for _, v := range h.o.Loop.Snapshot().Services {
		own := cfg.ProfileOf(v.Profile).Priority
		if v.Kind == supervisor.KindGateway && v.Profile != profiles.Default && wanted(v, own) {
			all = append(all, boot.Weigh{
				Service: v.Name, Profile: v.Profile, Main: v.PID, Run: v.Run, Isolated: cfg.IsolationOf(v.Profile).On(), Weight: own.CPUWeight, Pinned: own.CPUAffinity != "",
				Rank: ranks[own.Class], Stopped: slices.Contains(v.Needs, supervisor.NeedDisk), Warn: uint64(own.Quota.Warn), Stop: uint64(own.Quota.Stop),
			})
		}
	}
	return all
}

// checkQuotas measures once: the disk usage of profiles, or with share their processors and ports. The boot program measures and
// decides. checkQuotas replaces the notes in told. It reports whether there are notes, or the program failed.
func (h *Health) checkQuotas(share bool, told *notes) (noted bool) {
	notes, what := make(map[string]string), boot.MeasureDisk
	all := h.list(func(_ *supervisor.Service, own config.Priority) bool { return own.Quota.Set() })
	if share {
		what = boot.MeasureShare
		all = h.list(func(v *supervisor.Service, _ config.Priority) bool {
			return h.o.Config().IsolationOf(v.Profile).Mode == config.IsolationUser
		})
	}
	if len(all) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), quotaPeriod)
		defer cancel()
		found, err := h.MeasureProfiles(ctx, all, what)
		if err != nil {
			h.o.Loop.Post(supervisor.Remark{Text: "cannot measure what profiles have: " + err.Error(), Key: "quota"})
			return true
		}
		for _, w := range found {
			if notes[w.Service] = w.Note; w.Note != "" && told.of(w.Service) == "" {
				h.o.Loop.Post(supervisor.Remark{Service: w.Service, Text: w.Note})
			}
			noted = noted || w.Note != ""
			if w.Restart != "" {
				h.o.Loop.Post(supervisor.Unhealthy{Name: w.Service, Run: w.Run, Answer: w.Restart})
			}
			if !share {
				h.o.Loop.Post(supervisor.Hold{Name: w.Service, Reason: w.Hold, Disk: true})
			}
		}
	}
	told.Store(&notes)
	return noted
}

// The memory of gateways is recorded firstRecord after the boot, then every recordPeriod. firstRecord is short, so that a
// container that fills its memory at the boot has a record for the next one.
const firstRecord, recordPeriod = 30 * time.Second, 5 * time.Minute

// Admit holds back gateways for whose recorded memory there is no room, if the container has a limit. Call it after they are
// registered and before they start. It waits for the boot program. It then starts the recording of their memory.
func (h *Health) Admit(ctx context.Context) {
	if h.memory.container().Limit == 0 {
		return
	}
	sheddable := func(v *supervisor.Service, own config.Priority) bool {
		_, is := ranks[own.Class]
		return is && v.Want == supervisor.WantUp
	}
	ctx, cancel := context.WithTimeout(ctx, freePeriod) // the volume may not answer
	defer cancel()
	found, err := h.MeasureProfiles(ctx, h.list(sheddable), boot.AdmitMemory)
	if err != nil {
		h.o.Warn("cannot tell which gateways have no room: %v; all start — continuing", err)
	}
	had := make(map[string]uint64, len(found))
	for _, w := range found {
		if had[w.Service] = w.Bytes; w.Hold != "" {
			h.o.Loop.Post(supervisor.Hold{Name: w.Service, Reason: w.Hold})
		}
	}
	if h.memory.had.Swap(&had) != nil { // this init has served the volume before
		return
	}
	guard.Go("recording memory", func() {
		for wait := firstRecord; ; wait = recordPeriod {
			select {
			case <-time.After(wait):
				running := h.list(func(v *supervisor.Service, _ config.Priority) bool { return v.State == supervisor.Up })
				_, _ = h.MeasureProfiles(context.Background(), running, boot.RecordMemory) // after a failure the next boot has an older record
			case <-h.o.Loop.Ended():
				return
			}
		}
	})
}
