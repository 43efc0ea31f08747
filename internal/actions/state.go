package actions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"hinit/internal/config"
	"hinit/internal/wholefile"
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
func load(path string) (s state, err error) {
	text, err := wholefile.Read(path, mostState)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		s, err = state{}, fmt.Errorf("cannot read %s, so what was waiting is lost: %w", path, err)
	}
	if s.Marks == nil {
		s.Marks = Marks{}
	}
	return s, err
}

// save replaces the file. Only its user may read it, because addresses and keys of webhooks are often secret.
func (s *state) save(path string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return wholefile.Replace(path, bytes.NewReader(text), 0o600)
}
