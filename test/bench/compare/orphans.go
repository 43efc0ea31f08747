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

// orphanScript makes orphans one after another: the shell forks a child, which forks one more and ends.
const orphanScript = `i=0; while [ $i -lt %d ]; do (: &); i=$((i+1)); done`

// orphans takes M7 for 20,000 orphans. It measures the processor time of process 1 for each, the part that stays as zombies, and
// the time until the last is reaped. The orphans come from a process that has entered the namespace, as with docker exec.
func (b *bench) orphans() error {
	size := 4000
	if b.quick {
		size = 200
	}
	g, err := gather(b, "M7", b.peers, 1, false)
	defer g.kill()
	if err != nil {
		return err
	}
	start := time.Now()
	for round := range orphanBatches {
		if b.enough(round, start, 0.2, "M7") {
			break
		}
		var kept []*instance
		err := g.each(func(i *instance) error { return b.reap(i, size) })
		for _, i := range g.instances {
			if i.zombiesLeft > size/10 { // there are not enough process ids for all zombies of those
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

// reap is one batch.
func (b *bench) reap(i *instance, size int) error {
	before, err := cpuTime(i.pid())
	if err != nil {
		return err
	}
	if err := i.inside("/bin/sh", "-c", fmt.Sprintf(orphanScript, size)); err != nil {
		return err
	}
	drained, zombies, err := i.drain(i.zombiesLeft)
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

// drainTime is how long zombies may stay until they count as left behind.
const drainTime = 500 * time.Millisecond

// drain waits until there are no more zombies than before, and says how long that took.
func (i *instance) drain(before int) (time.Duration, int, error) {
	begin := time.Now()
	for {
		n, err := i.zombies()
		if took := time.Since(begin); err != nil || n <= before || took > drainTime {
			return took, n, err
		}
		<-time.After(200 * time.Microsecond)
	}
}

// zombies counts the dead children of process 1.
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

// inside runs a program to its end as a member of the namespace, whose orphans go to process 1.
func (i *instance) inside(argv ...string) error {
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
	// The call sets the namespace of this thread's children. Until it is set back the kernel lets the thread make no other
	// (clone(2), EINVAL), and Go ends a program whose thread it asks in vain. It never asks one that a goroutine is locked to.
	runtime.LockOSThread()
	if err := unix.Setns(theirs, syscall.CLONE_NEWPID); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	_, end, err := launch(nil, "", argv)
	if back := unix.Setns(own, syscall.CLONE_NEWPID); back != nil {
		return back // still locked: nothing else may run there
	}
	runtime.UnlockOSThread()
	if err != nil {
		return err
	}
	return end()
}
