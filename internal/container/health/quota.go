package health

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// quotaPeriod is how often the homes of profiles are measured.
	quotaPeriod = time.Minute
	// freePeriod is how often the free space is looked at. When it has become less by a percent, the homes are measured at once.
	freePeriod = 5 * time.Second
)

// quotaWatch keeps profiles within their quotas: it warns, and it stops gateways. It owns a goroutine from the first quota on.
type quotaWatch struct {
	begun atomic.Bool
	notes notes
	free  [2]uint64 // percent, see fills
}

// watchQuotas begins to measure when a configuration has the first quota.
func (h *Health) watchQuotas(cfg *config.Config) {
	set := cfg.Agent.Priority.Quota.Set()
	for _, p := range cfg.Profiles.Own {
		set = set || p.Priority.Quota.Set()
	}
	if set && !h.o.Plain && h.quota.begun.CompareAndSwap(false, true) {
		guard.Go("watching quotas", func() {
			for tick, n := time.Tick(freePeriod), 0; ; n++ {
				if h.fills() || n%int(quotaPeriod/freePeriod) == 0 {
					h.weigh()
				}
				select {
				case <-tick:
				case <-h.o.Loop.Ended():
					return
				}
			}
		})
	}
}

// fills reports whether the data volume, or the file system for temporary files, has less space or fewer inodes than before, or none.
func (h *Health) fills() (fills bool) {
	for i, dir := range [...]string{h.o.Config().Home, os.TempDir()} {
		var st unix.Statfs_t
		if blocking.Do(blocking.Volume, func() error { return unix.Statfs(dir, &st) }) == nil {
			free := min(st.Bavail*100/max(1, st.Blocks), st.Ffree*100/max(1, st.Files))
			fills = fills || free < h.quota.free[i] || free == 0
			h.quota.free[i] = free
		}
	}
	return fills
}

// weigh measures once. The boot program does the work, and says what follows.
func (h *Health) weigh() {
	cfg := h.o.Config()
	var all []boot.Weigh
	for _, v := range h.o.Loop.Snapshot().Services {
		quota := cfg.ProfileOf(v.Profile).Priority.Quota
		if v.Kind != supervisor.KindGateway || v.Profile == profiles.Default || !quota.Set() {
			continue
		}
		all = append(all, boot.Weigh{
			Service: v.Name, Profile: v.Profile, Main: v.PID, Isolated: cfg.IsolationOf(v.Profile).On(),
			Stopped: slices.Contains(v.Needs, supervisor.NeedDisk), Warn: uint64(quota.Warn), Stop: uint64(quota.Stop),
		})
	}
	if len(all) == 0 {
		h.quota.notes.Store(nil)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), quotaPeriod)
	defer cancel()
	found, err := h.Weigh(ctx, all)
	if err != nil {
		h.o.Loop.Post(supervisor.Remark{Text: "cannot measure what profiles have on the disk: " + err.Error(), Key: "quota"})
		return
	}
	notes := make(map[string]string)
	for _, w := range found {
		if notes[w.Service] = w.Note; w.Note != "" && h.quota.notes.of(w.Service) == "" {
			h.o.Loop.Post(supervisor.Remark{Service: w.Service, Text: w.Note})
		}
		h.o.Loop.Post(supervisor.Hold{Name: w.Service, Reason: w.Hold, Disk: true})
	}
	h.quota.notes.Store(&notes)
}
