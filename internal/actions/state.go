package actions

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"hinit/internal/config"
)

// Job is an action that is due.
type Job struct {
	Event   string        `json:"event"`
	Service string        `json:"service"`
	Profile string        `json:"profile"`
	Action  config.Action `json:"action"`
	Body    []byte        `json:"body"` // a [Message]

	lines *lines // log lines that the message still waits for; nil if it is complete
}

// state is the content of the file.
type state struct {
	Init  time.Time            `json:"init"` // start of the hinit that the marks belong to
	Marks Marks                `json:"marks"`
	Stale map[string]time.Time `json:"stale,omitempty"` // last reported change of files, by service
	Jobs  []*Job               `json:"jobs"`            // oldest first
}

// mostState limits how much is read. This program writes no larger file.
const mostState = 64 << 20

// load reads the state. A missing file is an empty state.
func load(path string) (state, error) {
	s := state{Marks: Marks{}}
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	var text []byte
	if err == nil && (!fi.Mode().IsRegular() || fi.Size() > mostState) {
		err = errors.New("it is no file of hinit-actions")
	}
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return state{Marks: Marks{}}, fmt.Errorf("cannot read %s, so what was waiting is lost: %w", path, err)
	}
	if s.Marks == nil {
		s.Marks = Marks{}
	}
	return s, nil
}

// save replaces the file. Only its user may read it, because addresses and keys of webhooks are often secret. The file survives the
// end of this process, but may not survive a crash of the machine.
func (s *state) save(path string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(next, path)
}
