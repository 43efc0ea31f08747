package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"strings"
)

// record is the content of the file that the store keeps for each live profile. It tells whose profile that is.
type record struct {
	UID   string   `json:"uid"`   // UID of the AgentProfile object
	Files []string `json:"files"` // files that the fleet has written, below the home of the profile
}

// readRecord returns the record of a live profile, or nil if there is none. It ignores a record without a profile, which a crash has
// left or an agent has made.
func (s *Store) readRecord(name string) (*record, error) {
	if !s.exists(s.Home(name)) {
		return nil, nil
	}
	return s.storedRecord(name)
}

// storedRecord returns the record that is stored for a name, or nil if there is none.
func (s *Store) storedRecord(name string) (*record, error) {
	text, err := s.readFile(path.Join(liveDir, name), maxRecordBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := &record{}
	if err == nil {
		err = json.Unmarshal(text, r)
	}
	return r, err
}

// writeRecord replaces the record of a profile. When it returns, the record is on the disk.
func (s *Store) writeRecord(name string, r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	at := path.Join(liveDir, name)
	if info, err := s.root.Lstat(at); err == nil && info.IsDir() { // an agent has made it, and a file can't replace a directory
		if err := s.discard(at); err != nil {
			return err
		}
	}
	return s.replace(at, text)
}

// maxUnknown limits the names that Names returns. Agents may make any number of records, and each costs a read of the API.
const maxUnknown = 200

// Names returns the profiles that have a record or data in the store, without those that known accepts. If there are more than
// maxUnknown, it chooses among them at random. all is their number.
func (s *Store) Names(known func(name string) bool) (names []string, all int, err error) {
	add := func(name string) {
		switch {
		case strings.HasPrefix(name, ".") || known(name): // files with a dot are temporary files that a crash has left
			return
		case strings.Contains(name, "%"): // an agent has made it: no object has such a name, and the client of the API refuses it
			return
		case len(names) < maxUnknown:
			names = append(names, name)
		default:
			if at := rand.N(all + 1); at < maxUnknown {
				names[at] = name
			}
		}
		all++
	}
	err = s.eachEntry(liveDir, func(name string, _ bool) { add(name) })
	return names, all, errors.Join(err, s.eachMoving(func(name, _ string) { add(name) }))
}

// removeUnknownRecord removes a record of no profile, whatever an agent has put there.
func (s *Store) removeUnknownRecord(name string) error { return s.discard(path.Join(liveDir, name)) }

// UIDs returns the UIDs of all data that the store has for a profile name. If the record can't be read, one of them is "", for
// which Inspect returns the error.
func (s *Store) UIDs(name string) (out []string, err error) {
	switch r, bad := s.readRecord(name); {
	case bad != nil:
		out = append(out, "")
	case r != nil:
		out = append(out, r.UID)
	}
	return out, s.eachMoving(func(of, uid string) {
		if of == name {
			out = append(out, uid)
		}
	})
}

// CheckFree returns an error if hinit has a profile of this name that belongs to another object, or to none.
func (s *Store) CheckFree(name, uid string) error {
	r, err := s.readRecord(name)
	if err != nil {
		return wrapError("read the record of", name, err)
	}
	if r != nil && r.UID == uid || !s.exists(s.Home(name)) {
		return nil
	}
	return fmt.Errorf("cannot make profile %q: its directory %s exists, and is not of this object; move it away", name, s.Home(name))
}

// Claim records that the live profile called name belongs to the object with the UID uid. It is called before the profile is
// created, so a crash may leave a record without a profile.
func (s *Store) Claim(name, uid string) error {
	if err := s.CheckFree(name, uid); err != nil {
		return err
	}
	return s.writeRecord(name, &record{UID: uid})
}

// removeRecord removes the record of a live profile.
func (s *Store) removeRecord(name string) error {
	err := s.root.Remove(path.Join(liveDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
