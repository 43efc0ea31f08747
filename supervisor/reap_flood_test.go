package supervisor

import (
	"testing"
	"testing/synctest"
	"time"
)

// endOrphan ends a process that belongs to no run.
func (f *fakeProcs) endOrphan() { f.end(1<<60, 0, 0) }

func TestLoopCollectsTheOrphansOfAFloodAndStillSeesItsServicesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(t, func(b *loopBench, cfg *Config) { cfg.MuteSIGCHLD = b.procs.setNoSIGCHLD })
		b.register(t, "s", WantUp)
		for range floodOrphans {
			b.procs.endOrphan()
			synctest.Wait()
		}
		if !b.procs.hasNoSIGCHLD() {
			t.Fatalf("SIGCHLD still comes after %d orphans in no time", floodOrphans)
		}
		b.procs.endOrphan()
		b.procs.end(b.Snapshot().Find("s").Run, 1, 0)
		synctest.Wait()
		if got := b.Orphans(); got != floodOrphans {
			t.Errorf("%d orphans reaped although nobody was told of the last", got)
		}
		time.Sleep(floodPause)
		synctest.Wait()
		if got, s := b.Orphans(), b.Snapshot().Find("s"); got != floodOrphans+1 || s.State != Backoff {
			t.Errorf("one pause later: %d orphans, service %s", got, s.State)
		}
		time.Sleep(floodEndReaps * floodPause)
		synctest.Wait()
		if b.procs.hasNoSIGCHLD() {
			t.Error("SIGCHLD is still off after the flood")
		}
		b.procs.endOrphan()
		synctest.Wait()
		if got := b.Orphans(); got != floodOrphans+2 {
			t.Errorf("%d orphans reaped at once after the flood, want %d", got, floodOrphans+2)
		}
		b.shutdown(t)
	})
}

func TestLoopHearsEveryChildWhileTheContainerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(t, func(b *loopBench, cfg *Config) { cfg.MuteSIGCHLD = b.procs.setNoSIGCHLD })
		b.register(t, "s", WantUp)
		for range floodOrphans {
			b.procs.endOrphan()
			synctest.Wait()
		}
		begin := time.Now()
		b.shutdown(t)
		if took := time.Since(begin); took > floodPause {
			t.Errorf("the stop in a flood took %v", took)
		}
		if b.procs.hasNoSIGCHLD() {
			t.Error("SIGCHLD is off at the end")
		}
	})
}

func TestLoopIsNotSlowedByOrphansNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchWith(t, func(b *loopBench, cfg *Config) { cfg.MuteSIGCHLD = b.procs.setNoSIGCHLD })
		for range 10 * floodOrphans {
			b.procs.endOrphan()
			synctest.Wait()
			time.Sleep(floodWindow / (floodOrphans / 2))
		}
		if b.procs.hasNoSIGCHLD() {
			t.Error("SIGCHLD is off though orphans are few")
		}
		b.shutdown(t)
	})
}
