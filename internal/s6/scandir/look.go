package scandir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"hinit/internal/s6"
	"hinit/profiles"
)

// Scan looks at everything: new directories are supervised when it returns, and those that are gone are told to end.
func (s *Scanner) Scan(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case s.scans <- done:
	case <-ctx.Done():
		return fmt.Errorf("cannot reach the scan directory: %w", context.Cause(ctx))
	case <-s.ended:
		return errGone
	}
	return s.wait(ctx, done)
}

// scan is one scan for everybody who has asked by now.
func (s *Scanner) scan(first chan struct{}) {
	waiting := []chan struct{}{first}
	for more := true; more; {
		select {
		case done := <-s.scans:
			waiting = append(waiting, done)
		default:
			more = false
		}
	}
	s.look()
	s.find()
	for _, done := range waiting {
		close(done)
	}
}

// Prune looks at what is gone and leaves what is new alone.
func (s *Scanner) Prune(ctx context.Context) error { return s.do(ctx, s.look) }

// Refresh reads the definition of a foreign slot again, for its next start. It does nothing for others.
func (s *Scanner) Refresh(ctx context.Context, name string) error {
	return s.do(ctx, func() {
		if p := s.pairOf(name); p != nil {
			s.refresh(p)
		}
	})
}

// look finds what is gone, and what of the others has changed.
func (s *Scanner) look() {
	s.pending.Store(false)
	s.looked = time.Now()
	gone := false
	for _, name := range slices.Sorted(maps.Keys(s.slots)) {
		slot := s.slots[name]
		switch {
		case !s.same(slot):
			gone = true
			s.forget(slot)
			s.lost(slot)
		case slot.kind == foreign:
			s.refresh(slot.pair)
		}
	}
	s.settle()
	s.catchUp()
	for name, id := range s.refused { // so that it is complained about again when it comes back
		if info, err := s.dir.Lstat(name); err != nil || idOf(info) != id {
			delete(s.refused, name)
		}
	}
	if gone {
		s.publish()
	}
}

// lost ends what a slot that is gone stood for.
func (s *Scanner) lost(slot *Slot) {
	switch slot.kind {
	case native:
		s.host.Unregistered(s.ctx, slot.Name)
	case foreign:
		s.host.Say("%s: its service directory is gone", slot.Name)
		s.leave(slot.pair)
	case fixed:
	}
}

// find takes in directories that are new. However many somebody has put there, it looks at so many names and complains about
// so many directories, and has one word about the rest.
func (s *Scanner) find() {
	names, refused := 16*s.ground.most, s.ground.most/10
	entries, more, err := s.dir.ReadSome("", names)
	if err != nil {
		s.host.Say("cannot scan for services: %v", err)
		return
	}
	crowd := ""
	if more {
		crowd = fmt.Sprintf("it holds more than %d names, and hinit looks at no more", names)
	}
	for _, e := range entries {
		if skipped(e.Name()) || !e.IsDir() && e.Type()&fs.ModeSymlink == 0 || s.slots[e.Name()] != nil {
			continue
		}
		if why := s.full(); why != "" {
			crowd = why
			break
		}
		if err := s.take(e.Name(), !e.IsDir()); err != nil && !s.refuse(e, err, refused) {
			crowd = fmt.Sprintf("more than %d directories in it are not in order", refused)
			break
		}
	}
	if crowd != s.crowd && crowd != "" {
		s.host.Say("not all of the scan directory %q is supervised: %s", s.ground.Scan, crowd)
	}
	s.crowd = crowd
	s.publish()
}

// full says why there is no room for another service, "" when there is.
func (s *Scanner) full() string {
	services := len(s.slots) + len(s.ending)
	for _, p := range s.pairs {
		if p.leaving {
			services++ // it is still there, and may be for as long as it likes
		}
	}
	if services >= s.ground.most {
		return fmt.Sprintf("there are %d services already", services)
	}
	if err := s.host.Room(); err != nil {
		return err.Error()
	}
	return ""
}

// skipped says whether a name is none of a service. The agent makes gateway-NAME.tmp on its way to gateway-NAME.
func skipped(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "gateway-") && strings.HasSuffix(name, ".tmp")
}

// refuse complains about a directory, once as long as it is the same. It returns false when there were too many.
func (s *Scanner) refuse(e fs.DirEntry, why error, most int) bool {
	name := e.Name()
	if len(name) > s6.MaxName {
		name = name[:s6.MaxName]
	}
	info, err := e.Info()
	if err != nil {
		return true // it is gone
	}
	id := idOf(info)
	if s.refused[e.Name()] == id {
		return true
	}
	if len(s.refused) >= most {
		return false
	}
	s.refused[e.Name()] = id
	s.host.Say("cannot supervise the service directory %q: %v", name, why)
	return true
}

// take takes in one directory.
func (s *Scanner) take(name string, link bool) error {
	if len(name) > s6.MaxName {
		return fmt.Errorf("its name is longer than %d characters", s6.MaxName)
	}
	if profile, ok := profiles.SlotProfile(name); ok {
		if link {
			return errors.New("the slot of a gateway has to be a directory, not a link")
		}
		return s.takeGateway(name, profile)
	}
	if why := s.host.Reserved(name); why != "" && s.pairs[name] == nil {
		return errors.New(why)
	}
	return s.takeForeign(name, link)
}

// takeGateway takes in a slot that the agent has registered. Its scripts say what hinit does anyway, but for what run exports.
func (s *Scanner) takeGateway(name, profile string) error {
	slot, err := s.open(name, native)
	if err != nil {
		return err
	}
	if slot.exports, err = s.exportsOf(slot); err != nil {
		slot.close()
		return err
	}
	s.slots[name] = slot
	s.publish() // who else registers the gateway now has to know what its slot exports
	if err := s.host.Gateway(s.ctx, profile, slot.NormallyUp(), slot.exports); err != nil {
		s.forget(slot)
		s.publish()
		return err
	}
	return nil
}

// maxRun is how long the run of a gateway may be.
const maxRun = 64 << 10

// exportsOf reads the run of a slot. One that can't be read or understood is said and changes nothing: it is not executed.
func (s *Scanner) exportsOf(slot *Slot) (map[string]string, error) {
	script, err := slot.dir.ReadFile(s6.RunFile, maxRun)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("it has no run")
	case err != nil:
		s.host.Say("%s: what its run exports is not taken over: %v", slot.Name, err)
		return nil, nil //nolint:nilerr // the gateway runs without
	}
	exports, unclear := s6.Exports(script)
	if len(unclear) > 0 {
		s.host.Say("%s: its run exports %s with words that only a shell understands, so they are not taken over; write the values themselves",
			slot.Name, strings.Join(unclear, " "))
	}
	return exports, nil
}
