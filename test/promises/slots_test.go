package promises_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/testkit"
)

// slots is the scan directory of the chaos container, with services that other programs created.
type slots struct {
	c       *chaos
	scan    string
	wanted  map[string]bool // Whether each of these services is wanted up.
	created int
}

// newSlots makes hinit answer as s6 in a container that has not booted yet.
func newSlots(c *chaos) *slots {
	s := &slots{c: c, scan: c.path("service"), wanted: map[string]bool{}}
	c.enableS6Tools("s6-svc", "s6-svscanctl")
	return s
}

func (s *slots) tool(name string, args ...string) {
	s.c.t.Helper()
	if err := s.tryTool(name, args...); err != nil {
		s.c.t.Fatalf("%v; seed %d", err, *seed)
	}
}

func (s *slots) tryTool(name string, args ...string) error {
	if out, err := s.c.asRoot(append([]string{s.c.tool(name)}, args...)...); err != nil {
		return fmt.Errorf("%s %q: %w: %s", name, args, err, out)
	}
	sheet.add("chaos commands", 1)
	return nil
}

// act performs one random s6 action on a gateway or a foreign service.
func (s *slots) act(profile string) {
	s.c.t.Helper()
	up := s.c.random.IntN(2) == 0
	word := map[bool]string{true: "-u", false: "-d"}[up]
	names := slices.Sorted(maps.Keys(s.wanted))
	n := s.c.random.IntN(10)
	if n >= 5 && len(names) == 0 {
		n = 4
	}
	switch {
	case n < 3:
		slot := filepath.Join(s.scan, "gateway-"+profile)
		// hinit may not have seen the profile yet, or may lack disk space for its slot; it tries again.
		within(s.c.t, patience, func() error {
			if err := s.c.booted(); err != nil {
				return err
			}
			return s.tryTool("s6-svc", word, slot)
		})
		s.c.wanted[profile] = map[bool]string{true: "running", false: "stopped"}[up]
	case n < 5:
		s.register(up)
	case n < 7:
		name := names[s.c.random.IntN(len(names))]
		s.tool("s6-svc", word, filepath.Join(s.scan, name))
		s.wanted[name] = up
	case n < 9:
		name := names[s.c.random.IntN(len(names))]
		for _, p := range s.c.processesOf(name) {
			_ = unix.Kill(p.pid, unix.SIGKILL)
			sheet.add("kills", 1)
		}
	default:
		name := names[s.c.random.IntN(len(names))]
		// The removal may fail because hinit is writing in the directory.
		s.c.check(poll(patience, func() error { return os.RemoveAll(filepath.Join(s.scan, name)) }))
		s.tool("s6-svscanctl", "-an", s.scan)
		delete(s.wanted, name)
	}
}

// skipDelays skips the restart delays, which are long after a lack of resources.
func (s *slots) skipDelays() {
	s.c.t.Helper()
	for _, v := range s.c.status().Services {
		if s.wanted[v.Name] && v.State == client.StateBackoff {
			s.tool("s6-svc", "-u", filepath.Join(s.scan, v.Name))
		}
	}
}

// register moves a complete service directory into place, and announces it.
func (s *slots) register(up bool) {
	s.c.t.Helper()
	name := fmt.Sprintf("f%d", s.created)
	s.created++
	temp := filepath.Join(s.scan, "."+name)
	s.c.check(os.Mkdir(temp, 0o755), testkit.WriteProgram(filepath.Join(temp, "run"), []byte("#!/bin/sh\n"+sleeper)))
	if !up {
		s.c.check(os.WriteFile(filepath.Join(temp, "down"), nil, 0o644))
	}
	s.c.check(chownTree(temp, s.c.uid), os.Rename(temp, filepath.Join(s.scan, name)))
	s.tool("s6-svscanctl", "-a", s.scan)
	s.wanted[name] = up
}

// compare returns the first difference between the expected and the actual services.
func (s *slots) compare(services map[string]client.Service) error {
	for name, up := range s.wanted {
		v, known := services[name]
		delete(services, name)
		state, want := client.StateDown, client.WantDown
		if up {
			state, want = client.StateUp, client.WantUp
		}
		switch processes := s.c.processesOf(name); {
		case !known:
			return fmt.Errorf("the foreign service %s is not known", name)
		case v.Want != want || v.State != state:
			return fmt.Errorf("the foreign service %s is %s, wanted %s (%s), and should be %s", name, v.State, v.Want, v.Reason, state)
		case (len(processes) > 0) != up:
			return fmt.Errorf("the foreign service %s is %s and has the processes %+v", name, v.State, processes)
		}
	}
	for name, v := range services {
		if strings.HasPrefix(name, "f") { // Only names that the test has given begin with f.
			return fmt.Errorf("%s is %s, and should be gone", name, v.State)
		}
	}
	// Each gateway must have a slot, and no other service may have one.
	entries, err := os.ReadDir(s.scan)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, foreign := s.wanted[e.Name()]; foreign || e.Type() != fs.ModeDir || e.Name()[0] == '.' {
			continue
		}
		if _, err := s.c.service(e.Name()); err != nil && e.Name() != "main-hermes" && e.Name() != "dashboard" {
			return fmt.Errorf("%s has a slot, but: %w", e.Name(), err)
		}
	}
	return nil
}
