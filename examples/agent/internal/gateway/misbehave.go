package gateway

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"hinit/examples/agent/internal/helper"
	"hinit/examples/agent/internal/knobs"
)

// shouldCrash reports whether the knobs want this start to crash. If the knob crash_times limits the crashes, shouldCrash
// counts them in the file agent.crashes in the home.
func (g *gateway) shouldCrash() bool {
	k := g.Knobs
	if k.MaxCrashes == 0 || (k.CrashAfter == 0 && k.SignalAfter == 0 && k.ExitAtOnceCode == knobs.NoExit) {
		return true
	}
	path := filepath.Join(g.Home.Dir, "agent.crashes")
	done := 0
	if data, err := os.ReadFile(path); err == nil {
		done, _ = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	if done >= k.MaxCrashes {
		return false
	}
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d\n", done+1), 0o644); err != nil {
		g.log.warn("cannot count a crash: %v", err)
	}
	return true
}

// misbehaveWhenRunning does what the knobs demand after the gateway has begun to run.
func (g *gateway) misbehaveWhenRunning() {
	k := g.Knobs
	if k.LeakChild != "" {
		g.warnOnError(g.leakedChild().Start())
	}
	if k.OrphanCount > 0 {
		g.warnOnError(helper.StartOrphans(k.OrphanCount))
		g.log.info("made %d orphans", k.OrphanCount)
	}
	if k.AllocateMB > 0 {
		g.allocatedMemory = allocate(k.AllocateMB)
		g.log.info("allocated %d MB", k.AllocateMB)
	}
	if k.LongLineBytes > 0 {
		_, _ = g.Stdout.WriteString(strings.Repeat("x", k.LongLineBytes) + "\n")
	}
	g.flood = startFlood(g.Stdout, k.FloodRate, k.FloodBytes, k.FloodLines)
	if k.CloseStdout {
		g.warnOnError(g.Stdout.Close())
	}
}

func (g *gateway) leakedChild() helper.Sleeper {
	mode := g.Knobs.LeakChild
	return helper.Sleeper{
		Lifetime:   g.Knobs.LeakLifetime,
		PIDFile:    filepath.Join(g.Home.Dir, "leaked.pid"),
		IgnoreTerm: g.Knobs.IgnoreTerm,
		DoubleFork: mode == knobs.LeakDoubleFork || mode == knobs.LeakDaemon,
		Setsid:     mode == knobs.LeakSetsid || mode == knobs.LeakDaemon,
		CleanEnv:   mode == knobs.LeakDaemon,
	}
}

// allocate allocates the given number of megabytes and writes to each page, so that the kernel has to provide the memory.
func allocate(megabytes int) []byte {
	memory := make([]byte, megabytes<<20)
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	return memory
}
