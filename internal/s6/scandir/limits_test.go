package scandir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

const fewServices = 50

func makeServiceDirs(t *testing.T, g Layout, format string, n int, run bool) {
	t.Helper()
	must(t, g.Agent.Do(func() error {
		for i := range n {
			dir := filepath.Join(g.ScanDir, fmt.Sprintf(format, i))
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
			if run {
				if err := os.WriteFile(dir+"/run", []byte("#!/bin/sh\n"), 0o755); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

func TestMoreDirectoriesThanAnybodyCanSuperviseAreOneLineInTheLog(t *testing.T) {
	g, h := newLayout(t), newHost()
	g.maxServices = fewServices
	s := openScanner(t, h, g)
	makeServiceDirs(t, g, "junk-%d", 16*fewServices+10, false)
	for range 3 {
		must(t, s.Scan(t.Context()))
	}
	if n := len(s.Slots()); n != fewServices {
		t.Errorf("%d directories are supervised, want %d", n, fewServices)
	}
	if got := h.countMessages("not all of the scan directory"); got != 1 {
		t.Errorf("it is said %d times that not all is supervised: %q", got, h.messages[len(h.messages)-3:])
	}
	if known := len(s.table.Load().entries); known != fewServices {
		t.Errorf("%d names are remembered for %d services", known, fewServices)
	}
}

func TestDirectoriesWithoutEndThatAreNotInOrderAreNotAllNamed(t *testing.T) {
	g, h := newLayout(t), newHost()
	g.maxServices = fewServices
	s := openScanner(t, h, g)
	makeServiceDirs(t, g, "gateway-g%d", fewServices, false)
	for range 3 {
		must(t, s.Scan(t.Context()))
	}
	if got := h.countMessages("cannot supervise the service directory"); got != fewServices/10 {
		t.Errorf("%d directories are named, want %d", got, fewServices/10)
	}
	if got := h.countMessages("not all of the scan directory"); got != 1 {
		t.Errorf("it is said %d times that there are more", got)
	}
	for i := range fewServices {
		must(t, os.Remove(filepath.Join(g.ScanDir, fmt.Sprintf("gateway-g%d", i))))
	}
	makeServiceDirs(t, g, "zlast-%d", 1, true)
	must(t, s.Scan(t.Context()))
	if !s.Has("zlast-0") {
		t.Error("when they are gone the others are still not supervised")
	}
}

func TestServicesThatDoNotEndTakeTheRoomOfNewOnes(t *testing.T) {
	t.Parallel()
	g, h := newLayout(t), newHost()
	g.maxServices = fewServices
	s := openScanner(t, h, g)
	makeServiceDirs(t, g, "first-%d", fewServices, true)
	must(t, s.Scan(t.Context()))
	var names []string
	for i := range fewServices {
		names = append(names, fmt.Sprintf("first-%d", i))
		must(t, os.RemoveAll(filepath.Join(g.ScanDir, names[i])))
	}
	waitUntil(t, "all are gone", func() bool { return len(s.Slots()) == 0 })
	waitUntil(t, "those that have ended make room", func() bool { _ = s.HandleRemoved(t.Context()); return !slices.ContainsFunc(names, s.IsForeign) })
	h.whileLocked(func() { h.capacityErr = errors.New("no descriptor is left") })
	makeServiceDirs(t, g, "second-%d", 3, true)
	must(t, s.Scan(t.Context()))
	if s.Has("second-0") || h.countMessages("no descriptor is left") != 1 {
		t.Errorf("without room a directory is supervised: %v", s.Has("second-0"))
	}
	h.whileLocked(func() { h.capacityErr = nil })
	must(t, s.Scan(t.Context()))
	if !s.Has("second-0") {
		t.Error("with room again it is not supervised")
	}
}

func TestASlotIsMadeAlthoughSomebodyLeavesATemporaryNameOfTheFuture(t *testing.T) {
	g, h := newLayout(t), newHost()
	s := openScanner(t, h, g)
	temp := makeServiceDir(t, g, ".gateway-a.tmp", map[string]string{"run": "#!/bin/sh\n"})
	future := time.Now().Add(24 * time.Hour)
	must(t, os.Chtimes(temp, future, future))
	must(t, s.Publish(t.Context(), "gateway-a", gatewayFiles, false))
	if !s.Has("gateway-a") {
		t.Error("it is left to somebody who will never make it")
	}
}
