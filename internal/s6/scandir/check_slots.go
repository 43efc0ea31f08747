package scandir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/s6/foreign"
	"hinit/internal/s6/formats"
	"hinit/profiles"
)

// Scan supervises new directories, and asks the services of removed directories to end, before it returns. Calls that arrive
// before a scan begins share this scan.
func (s *Scanner) Scan(ctx context.Context) error {
	asked := time.Now()
	return s.do(ctx, func() {
		if s.lastScan.After(asked) {
			return
		}
		s.lastScan = time.Now()
		s.checkSlots()
		s.superviseNew()
	})
}

// Prune is Scan without new directories.
func (s *Scanner) Prune(ctx context.Context) error { return s.do(ctx, s.checkSlots) }

// Refresh reads the definition of a foreign service again, for its next start. For other services it does nothing.
func (s *Scanner) Refresh(ctx context.Context, name string) error {
	return s.do(ctx, func() {
		if service := s.service(name); service != nil {
			service.Refresh()
		}
	})
}

// checkSlots finds removed slots and changed definitions, and updates the services.
func (s *Scanner) checkSlots() {
	s.checkRequested.Store(false)
	s.lastCheck = time.Now()
	gone := s.removedSlots()
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		e := s.entries[name]
		switch {
		case gone[name]:
			s.handleRemoved(e)
		case e.Slot != nil && e.Slot.Kind == other:
			e.Service.Refresh()
		}
		if e.Service != nil {
			e.Service.RepairLost()
		}
		if e.Refused != (fsutil.ID{}) { // report the next fault again if another directory has taken the place of the refused directory
			if info, err := s.dir.Lstat(name); err != nil || fsutil.IDOf(info) != e.Refused {
				e.Refused = fsutil.ID{}
			}
		}
		s.removeUnused(name)
	}
	s.retryFailed()
	if len(gone) > 0 {
		s.publish()
	}
}

// removedSlots returns the names of slots whose directory was removed or replaced. It checks all with one change of identity.
func (s *Scanner) removedSlots() map[string]bool {
	gone := make(map[string]bool)
	_ = s.dir.WithIdentity(func(d *fsutil.Dir) error { // without the scan directory, no slot counts as gone
		for name, e := range s.entries {
			if e.Slot != nil && !e.Slot.hasName(d) {
				gone[name] = true
			}
		}
		return nil
	})
	return gone
}

// handleRemoved forgets a slot whose directory is gone. It tells the owner of the slot: for a foreign service, the supervisor ends
// the service.
func (s *Scanner) handleRemoved(e *entry) {
	slot := e.Slot
	s.forget(e)
	switch slot.Kind {
	case native:
		s.host.SlotRemoved(s.ctx, slot.Name)
	case other:
		s.host.Say("%s: its service directory is gone", slot.Name)
		e.Service.BeginRemoval()
	case fixed:
	}
}

// superviseNew supervises new directories. It reads a limited number of names, and complains a limited number of times. A single
// message says that a limit was exceeded.
func (s *Scanner) superviseNew() {
	names, refused := 16*s.layout.mostServices, s.layout.mostServices/10
	entries, more, err := s.dir.ReadAtMost("", names)
	if err != nil {
		s.host.Say("cannot scan for services: %v", err)
		return
	}
	// A service directory comes before the links to it, which are refused.
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Type()&fs.ModeSymlink, b.Type()&fs.ModeSymlink) })
	partial := ""
	if more {
		partial = fmt.Sprintf("it holds more than %d names, and hinit looks at no more", names)
	}
	for _, e := range entries {
		name := e.Name()
		// the agent first creates gateway-NAME.tmp, and then renames it to gateway-NAME
		if name[0] == '.' || strings.HasPrefix(name, "gateway-") && strings.HasSuffix(name, ".tmp") || !e.IsDir() && e.Type()&fs.ModeSymlink == 0 || s.slot(name) != nil {
			continue
		}
		if why := s.limitReached(); why != "" {
			partial = why
			break
		}
		if err := s.accept(e.Name(), !e.IsDir()); err != nil && !s.refuse(e, err, refused) {
			partial = fmt.Sprintf("more than %d directories in it are not in order", refused)
			break
		}
	}
	if partial != s.limitMessage && partial != "" {
		s.host.Say("not all of the scan directory %q is supervised: %s", s.layout.Scan, partial)
	}
	s.limitMessage = partial
}

// limitReached says why no more services can be supervised, or returns "" if there is room.
func (s *Scanner) limitReached() string {
	services := 0
	for _, e := range s.entries {
		if e.Slot != nil {
			services++
		}
		if e.Service != nil && e.Service.Leaving {
			services++ // the process of a removed service counts until it ends
		}
		if e.Service != nil && !e.Service.LoggerEnds.IsZero() {
			services++
		}
	}
	if services >= s.layout.mostServices {
		return fmt.Sprintf("there are %d services already", services)
	}
	if err := s.host.CheckCapacity(); err != nil {
		return err.Error()
	}
	return ""
}

// refuse reports a directory that can't be a slot, but only once. It returns false if the number of such reports has
// reached the limit most.
func (s *Scanner) refuse(e fs.DirEntry, why error, most int) bool {
	name := e.Name()[:min(len(e.Name()), formats.MaxName)]
	info, err := e.Info()
	if err != nil {
		return true // the entry has just been removed
	}
	known := s.entryOf(e.Name())
	defer s.removeUnused(e.Name())
	if known.Refused == fsutil.IDOf(info) {
		return true
	}
	refused := 0
	for _, e := range s.entries {
		if e.Refused != (fsutil.ID{}) {
			refused++
		}
	}
	if refused >= most {
		return false
	}
	known.Refused = fsutil.IDOf(info)
	s.host.Say("cannot supervise the service directory %q: %v", name, why)
	return true
}

// accept supervises the new directory name of the scan directory. If link is true, the name is a symbolic link. An error says why
// the directory can't be a service.
func (s *Scanner) accept(name string, link bool) error {
	if len(name) > formats.MaxName {
		return fmt.Errorf("its name is longer than %d characters", formats.MaxName)
	}
	if profile, ok := profiles.SlotProfile(name); ok {
		if link {
			return errors.New("the slot of a gateway has to be a directory, not a link")
		}
		return s.acceptGateway(name, profile)
	}
	known := s.service(name)
	if why := s.host.WhyReserved(name); why != "" && (known == nil || known.Forgotten) {
		return errors.New(why)
	}
	return s.acceptForeignSlot(name, link)
}

// acceptGateway accepts a slot that the agent has made for a gateway. Only the exports of its run script are used.
func (s *Scanner) acceptGateway(name, profile string) error {
	slot, err := s.open(name, native)
	if err != nil {
		return err
	}
	if slot.Exports, err = s.exportsOf(slot); err != nil {
		slot.close()
		return err
	}
	e := s.entryOf(name)
	defer s.removeUnused(name)
	e.Slot = slot
	s.publish() // publish first, because a client that sees the service must also find the slot
	if err := s.host.SlotMade(s.ctx, profile, slot.NormallyUp(), slot.Exports); err != nil {
		s.forget(e)
		s.publish()
		return err
	}
	return nil
}

// acceptForeignSlot supervises a directory as a service by the rules of s6, see package foreign.
func (s *Scanner) acceptForeignSlot(name string, link bool) error {
	e := s.entryOf(name)
	defer s.removeUnused(name)
	slot := &Slot{Name: name, Kind: other}
	if link {
		info, err := s.dir.Lstat(name)
		if err != nil {
			return err
		}
		slot.Link = fsutil.IDOf(info)
		if same := s.slotOfPath(filepath.Join(s.layout.Scan, name)); same != nil { // run no second copy of the service, as in s6
			return fmt.Errorf("it leads to the directory of %s, which is supervised already", same.Name)
		}
	}
	service := e.Service
	if service == nil {
		service = foreign.New(serviceHost{s.host, s}, name)
		s.scheduleCheck() // foreign directories are checked more often
	}
	if err := service.OpenDirectory(filepath.Join(s.layout.Scan, name), link); err != nil {
		return err
	}
	slot.ID = service.Main.ID
	e.Slot, e.Service = slot, service
	service.Begin()
	return nil
}

// maxRun is the maximum number of bytes of a run script from which variables are read.
const maxRun = 64 << 10

// exportsOf returns the variables that the run script of a slot exports. It parses the script without running it.
func (s *Scanner) exportsOf(slot *Slot) (map[string]string, error) {
	script, err := slot.dir.ReadFile(formats.RunFile, maxRun)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("it has no run")
	case err != nil:
		s.host.Say("%s: what its run exports is not taken over: %v", slot.Name, err)
		return nil, nil //nolint:nilerr // the gateway runs without the exports
	}
	exports, unclear := formats.Exports(script)
	if len(unclear) > 0 {
		s.host.Say("%s: its run exports %s with words that only a shell understands, so they are not taken over; write the values themselves",
			slot.Name, strings.Join(unclear, " "))
	}
	return exports, nil
}
