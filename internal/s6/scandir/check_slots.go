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

// Scan begins to supervise new directories, and tells the services of removed directories to end. It returns after all this.
// Calls before a scan begins share that scan.
func (s *Scanner) Scan(ctx context.Context) error {
	scanStart := time.Now()
	return s.doInScanner(ctx, func() {
		if s.lastScan.After(scanStart) {
			return
		}
		s.lastScan = time.Now()
		s.checkSlots()
		s.superviseNew()
	})
}

// HandleRemoved handles removed directories as Scan does, and ignores new ones.
func (s *Scanner) HandleRemoved(ctx context.Context) error { return s.doInScanner(ctx, s.checkSlots) }

// Refresh reads the definition of a foreign service again, for its next start. It ignores other services.
func (s *Scanner) Refresh(ctx context.Context, name string) error {
	return s.doInScanner(ctx, func() {
		if service := s.service(name); service != nil {
			service.RereadDefinitions()
		}
	})
}

// checkSlots finds removed slots and changed definitions, and updates the services. It ignores new directories.
func (s *Scanner) checkSlots() {
	s.checkRequested.Store(false)
	s.lastCheck = time.Now()
	gone := s.removedSlots()
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		e := s.entries[name]
		switch {
		case gone[name]:
			s.handleRemoved(e)
		case e.Slot != nil && e.Slot.Kind == foreignSlot:
			e.Service.RereadDefinitions()
		}
		if e.Service != nil {
			e.Service.HandleLostRecords()
		}
		if e.Refused != (fsutil.ID{}) {
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

// removedSlots returns the names of slots whose directory was removed or replaced. It changes its identity only once for all
// slots.
func (s *Scanner) removedSlots() map[string]bool {
	gone := make(map[string]bool)
	_ = s.dir.WithIdentity(func(d *fsutil.Dir) error { // no slot counts as removed if the scan directory can't be used
		for name, e := range s.entries {
			if e.Slot != nil && !e.Slot.hasName(d) {
				gone[name] = true
			}
		}
		return nil
	})
	return gone
}

// handleRemoved forgets a slot whose directory is gone. It tells the host about a slot of hinit's own service, and ends a
// foreign service.
func (s *Scanner) handleRemoved(e *entry) {
	slot := e.Slot
	s.forgetEntry(e)
	switch slot.Kind {
	case nativeSlot:
		s.host.SlotRemoved(s.ctx, slot.Name)
	case foreignSlot:
		s.host.Say("%s: its service directory is gone", slot.Name)
		e.Service.BeginRemoval()
	case fixedSlot:
	}
}

// superviseNew begins to supervise new directories. It limits the number of names and of reported problems. One message reports
// an exceeded limit.
func (s *Scanner) superviseNew() {
	names, refused := 16*s.layout.maxServices, s.layout.maxServices/10
	entries, more, err := s.dir.ReadAtMost("", names)
	if err != nil {
		s.host.Say("cannot scan for services: %v", err)
		return
	}
	// With directories before symbolic links, hinit refuses a link to a service directory, and not the directory itself.
	slices.SortStableFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Type()&fs.ModeSymlink, b.Type()&fs.ModeSymlink) })
	partial := ""
	if more {
		partial = fmt.Sprintf("it holds more than %d names, and hinit looks at no more", names)
	}
	for _, e := range entries {
		name := e.Name()
		// The agent makes a slot as gateway-NAME.tmp first, and then renames it to gateway-NAME.
		if name[0] == '.' || strings.HasPrefix(name, "gateway-") && strings.HasSuffix(name, ".tmp") || !e.IsDir() && e.Type()&fs.ModeSymlink == 0 || s.slot(name) != nil {
			continue
		}
		if why := s.whyLimitReached(); why != "" {
			partial = why
			break
		}
		if err := s.acceptEntry(e.Name(), !e.IsDir()); err != nil && !s.refuseEntry(e, err, refused) {
			partial = fmt.Sprintf("more than %d directories in it are not in order", refused)
			break
		}
	}
	if partial != s.limitMessage && partial != "" {
		s.host.Say("not all of the scan directory %q is supervised: %s", s.layout.ScanDir, partial)
	}
	s.limitMessage = partial
}

// whyLimitReached says why no more services can be supervised. It returns "" below the limit.
func (s *Scanner) whyLimitReached() string {
	services := 0
	for _, e := range s.entries {
		if e.Slot != nil {
			services++
		}
		if e.Service != nil && e.Service.Leaving {
			services++
		}
		if e.Service != nil && !e.Service.LoggerDeadline.IsZero() {
			services++
		}
	}
	if services >= s.layout.maxServices {
		return fmt.Sprintf("there are %d services already", services)
	}
	if err := s.host.CheckCapacity(); err != nil {
		return err.Error()
	}
	return ""
}

// refuseEntry reports that a directory can't be a slot, once for each directory. It returns false after the maximum number of
// reports.
func (s *Scanner) refuseEntry(e fs.DirEntry, why error, limit int) bool {
	name := e.Name()[:min(len(e.Name()), formats.MaxName)]
	info, err := e.Info()
	if err != nil {
		return true
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
	if refused >= limit {
		return false
	}
	known.Refused = fsutil.IDOf(info)
	s.host.Say("cannot supervise the service directory %q: %v", name, why)
	return true
}

// acceptEntry begins to supervise the new directory name in the scan directory. link means that the name is a symbolic link. The
// error says why the directory can't be a service.
func (s *Scanner) acceptEntry(name string, link bool) error {
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

// acceptGateway accepts the agent's slot for a gateway. It uses only the variables that the slot's run script exports.
func (s *Scanner) acceptGateway(name, profile string) error {
	slot, err := s.openSlot(name, nativeSlot)
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
	s.publish() // a client that sees the service must also find its slot, so publish first
	if err := s.host.SlotMade(s.ctx, profile, slot.NormallyUp(), slot.Exports); err != nil {
		s.forgetEntry(e)
		s.publish()
		return err
	}
	return nil
}

// acceptForeignSlot begins to supervise a directory by the rules of s6, see package foreign.
func (s *Scanner) acceptForeignSlot(name string, link bool) error {
	e := s.entryOf(name)
	defer s.removeUnused(name)
	slot := &Slot{Name: name, Kind: foreignSlot}
	if link {
		info, err := s.dir.Lstat(name)
		if err != nil {
			return err
		}
		slot.Link = fsutil.IDOf(info)
		if same := s.slotOfPath(filepath.Join(s.layout.ScanDir, name)); same != nil { // the directory already has a service under another name, and s6 would not run it twice either
			return fmt.Errorf("it leads to the directory of %s, which is supervised already", same.Name)
		}
	}
	service := e.Service
	if service == nil {
		service = foreign.New(serviceHost{s.host, s}, name)
		s.scheduleCheck() // this directory needs more frequent checks
	}
	if err := service.OpenDirectory(filepath.Join(s.layout.ScanDir, name), link); err != nil {
		return err
	}
	slot.ID = service.Main.ID
	e.Slot, e.Service = slot, service
	service.Register()
	return nil
}

// maxRunScript is the maximum number of bytes of a run script from which variables are read.
const maxRunScript = 64 << 10

// exportsOf returns the variables that the run script of a slot exports. It only parses the script.
func (s *Scanner) exportsOf(slot *Slot) (map[string]string, error) {
	script, err := slot.dir.ReadFile(formats.RunFile, maxRunScript)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("it has no run")
	case err != nil:
		s.host.Say("%s: what its run exports is not taken over: %v", slot.Name, err)
		return nil, nil //nolint:nilerr // without the variables, the gateway still runs
	}
	exports, unclear := formats.Exports(script)
	if len(unclear) > 0 {
		s.host.Say("%s: its run exports %s with words that only a shell understands, so they are not taken over; write the values themselves",
			slot.Name, strings.Join(unclear, " "))
	}
	return exports, nil
}
