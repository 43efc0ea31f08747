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

// record is the content of a file that the store keeps for each live profile. It names the object to which the profile
// belongs.
type record struct {
	UID   string   `json:"uid"`   // UID of the AgentProfile object.
	Files []string `json:"files"` // Files that the fleet has written, below the profile's home.
}

// readRecord returns the record of a live profile, or nil. It ignores a record without a profile, which a crash has left or
// an agent has made.
func (s *Store) readRecord(name string) (*record, error) {
	if !s.exists(s.Home(name)) {
		return nil, nil
	}
	return s.storedRecord(name)
}

// storedRecord returns the record that is stored for a name, or nil.
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

// writeRecord replaces the record of a profile. The record is on the disk when it returns.
func (s *Store) writeRecord(name string, r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	at := path.Join(liveDir, name)
	// An agent has made the directory; remove it, because a file can't replace a directory.
	if info, err := s.root.Lstat(at); err == nil && info.IsDir() {
		if err := s.discard(at); err != nil {
			return err
		}
	}
	return s.replace(at, text)
}

// maxUnknownNames limits the names that Names returns. Agents may make any number of records, and each name costs a read from the
// API server.
const maxUnknownNames = 200

// Names returns the profiles that have a record or data in the store, except the ones for which known returns true. all is
// their number. If there are more than maxUnknownNames, Names returns a random part of them.
func (s *Store) Names(known func(name string) bool) (names []string, all int, err error) {
	add := func(name string) {
		switch {
		// A file that begins with a dot is a temporary file that a crash has left.
		case strings.HasPrefix(name, ".") || known(name):
			return
		case strings.Contains(name, "%"): // An agent created this file: no object has such a name, and the API client refuses it.
			return
		case len(names) < maxUnknownNames:
			names = append(names, name)
		default:
			if at := rand.N(all + 1); at < maxUnknownNames {
				names[at] = name
			}
		}
		all++
	}
	err = s.eachEntry(liveDir, func(name string, _ bool) { add(name) })
	return names, all, errors.Join(err, s.eachMoving(func(name, _ string) { add(name) }))
}

// removeUnknownRecord removes the record of a name that no profile has. The record may be any file or directory that an agent
// has made.
func (s *Store) removeUnknownRecord(name string) error { return s.discard(path.Join(liveDir, name)) }

// UIDs returns the UIDs of all data that the store has for a profile's name. If the record can't be read, one of them is "",
// for which Inspect returns the error.
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

// CheckFree returns an error if hinit has a profile of this name that does not belong to the object with this UID.
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

// Claim records that the live profile with this name belongs to the object with this UID. Call it before the profile is
// created. So a crash may leave a record without a profile.
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
