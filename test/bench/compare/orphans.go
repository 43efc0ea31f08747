package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const orphanBatches = 5

// orphanScript creates orphans: the shell forks children that fork once more and exit.
const orphanScript = `i=0; while [ $i -lt %d ]; do (: &); i=$((i+1)); done`

// measureOrphans measures M7 with 20,000 orphans: the processor time of process 1 for each, the
// remaining zombies, and the time until the last is reaped.
func (b *bench) measureOrphans() error {
	size := 4000
	if b.quick {
		size = 200
	}
	g, err := startCandidates(b, "M7", b.peers, 1, false)
	defer g.kill()
	if err != nil {
		return err
	}
	start := time.Now()
	for round := range orphanBatches {
		if b.timeIsUp(round, start, 0.2, "M7") {
			break
		}
		var kept []*instance
		err := g.each(func(i *instance) error { return b.measureBatch(i, size) })
		for _, i := range g.instances {
			if i.zombiesLeft > size/10 { // The peer's zombies would use up all process IDs.
				i.kill()
			} else {
				kept = append(kept, i)
			}
		}
		g.instances = kept
		if err != nil {
			return err
		}
	}
	return nil
}

// measureBatch measures one batch of orphans.
func (b *bench) measureBatch(i *instance, size int) error {
	before, err := cpuTime(i.pid())
	if err != nil {
		return err
	}
	if err := i.runInside("/bin/sh", "-c", fmt.Sprintf(orphanScript, size)); err != nil {
		return err
	}
	drained, zombies, err := i.awaitReaped(i.zombiesLeft)
	if err != nil {
		return err
	}
	b.figures.add("M7", "left %", i.peer.name(), 100*float64(zombies-i.zombiesLeft)/float64(size))
	i.zombiesLeft = zombies
	after, err := cpuTime(i.pid())
	if err != nil {
		return err
	}
	b.figures.add("M7", "µs", i.peer.name(), float64((after-before).Nanoseconds())/1000/float64(size))
	b.figures.add("M7", "drained ms", i.peer.name(), ms(drained))
	return nil
}

// drainTime is how long zombies may stay before they count as left behind.
const drainTime = 500 * time.Millisecond

// awaitReaped waits until there are no more zombies than before. It returns the duration and the
// number of remaining zombies.
func (i *instance) awaitReaped(before int) (time.Duration, int, error) {
	begin := time.Now()
	for {
		n, err := i.zombies()
		if took := time.Since(begin); err != nil || n <= before || took > drainTime {
			return took, n, err
		}
		<-time.After(200 * time.Microsecond)
	}
}

// zombies counts the unreaped children of process 1.
func (i *instance) zombies() (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", i.pid()))
	if err != nil {
		return 0, err
	}
	n := 0
	for pid := range strings.FieldsSeq(string(text)) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(rest, "Z") {
			n++
		}
	}
	return n, nil
}

// runInside runs a program in the namespace, so that process 1 gets its orphans.
func (i *instance) runInside(argv ...string) error {
	own, err := unix.Open("/proc/self/ns/pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	theirs, err := unix.Open("/proc/"+strconv.Itoa(i.pid())+"/ns/pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(theirs)
	// setns sets the PID namespace of this thread's children. Until it is reset, the kernel refuses new
	// threads from this one (clone(2), EINVAL), and the Go runtime would abort. The runtime creates no
	// thread from a locked one.
	runtime.LockOSThread()
	if err := unix.Setns(theirs, syscall.CLONE_NEWPID); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	_, end, err := launch(nil, "", argv)
	if back := unix.Setns(own, syscall.CLONE_NEWPID); back != nil {
		return back // The goroutine stays locked, so that no other goroutine runs on this thread.
	}
	runtime.UnlockOSThread()
	if err != nil {
		return err
	}
	return end()
}
