package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Scripts of services that write a line when they are ready, and another after SIGTERM. They wait
// on a FIFO without a writer, so that only a signal ends them.
const (
	obeyScript = `trap 'echo >>%[1]s/told; exit 0' TERM
exec 3<>%[1]s/nothing
echo >>%[1]s/ready
read -r x <&3
`
	stubbornScript = `trap '' TERM
exec 3<>%[1]s/nothing
echo >>%[1]s/ready
read -r x <&3
`
)

// stubbornBudget is the stop timeout in the run with a service that ignores SIGTERM.
const stubbornBudget = 2 * time.Second

// measureStopSignals completes M10: it counts the services that get SIGTERM before process 1 exits,
// with and without a service that ignores it.
func (b *bench) measureStopSignals() error {
	n := 100
	if b.quick {
		n = 10
	}
	for _, p := range candidatesOf[supervisor](b) {
		if p.name() == loopName {
			continue
		}
		took, told, err := b.measureStops(p, n, false)
		if err != nil {
			if err := b.drop(p, "M10", err); err != nil {
				return err
			}
			continue
		}
		b.figures.add("M10 check", "told", p.name(), float64(told))
		b.figures.add("M10 check", "ms", p.name(), ms(took))
		if p.name() != hinitName {
			continue // Other peers wait for ever, or for ten seconds.
		}
		if took, told, err = b.measureStops(p, n, true); err != nil {
			return err
		}
		b.figures.add("M10 check", "told beside a stubborn one", p.name(), float64(told))
		b.figures.add("M10 check", "ms beyond its budget", p.name(), ms(took-stubbornBudget))
	}
	return nil
}

func (b *bench) measureStops(p supervisor, n int, stubborn bool) (time.Duration, int, error) {
	s, err := b.newSite(n)
	if err != nil {
		return 0, 0, err
	}
	if err := errors.Join(
		copyFile(s.sleeper, "/bin/sh"),
		s.write("obey", fmt.Sprintf(obeyScript, s.dir), 0o644),
		s.write("stubborn", fmt.Sprintf(stubbornScript, s.dir), 0o644),
		s.write("ready", "", 0o666), s.write("told", "", 0o666),
		unix.Mkfifo(s.path("nothing"), 0o666),
		os.Chmod(s.path("ready"), 0o666), os.Chmod(s.path("told"), 0o666), os.Chmod(s.path("nothing"), 0o666),
	); err != nil {
		return 0, 0, err
	}
	s.command = []string{s.sleeper, s.path("obey")}
	if stubborn {
		s.first = []string{s.sleeper, s.path("stubborn")}
		s.budget = stubbornBudget
	}
	i, err := b.start(p, s)
	if err != nil {
		return 0, 0, err
	}
	defer i.kill()
	if err := until("getting ready", 20*time.Millisecond, func() (bool, error) {
		ready, err := lines(s.path("ready"))
		return ready == n, err
	}); err != nil {
		return 0, 0, i.withConsole(err)
	}
	if err := i.awaitRest(); err != nil {
		return 0, 0, err
	}
	took, err := i.terminate(p.stopSignal())
	if err != nil {
		return 0, 0, err
	}
	told, err := lines(s.path("told"))
	return took, told, err
}

func lines(path string) (int, error) {
	text, err := os.ReadFile(path)
	return bytes.Count(text, []byte("\n")), err
}
