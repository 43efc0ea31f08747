package web

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// Beside has functions that run other programs of hinit. Each returns the JSON output of its command. The error is [fs.ErrNotExist]
// if the container has no boards or sandboxes.
type Beside struct {
	Boards    func(ctx context.Context, home string) ([]byte, error) // hinit kanban stats --all
	Sandboxes func(ctx context.Context, home string) ([]byte, error) // hinit sandbox ls --json
}

const (
	besideFresh = 2 * time.Second  // longest age of an answer on its own page
	besideLook  = 30 * time.Second // longest age of the answer that decides about the navigation
	besideTime  = 5 * time.Second  // limit of a command

	besidePatience = time.Second // wait for the first answer; after it, a page is shown without
)

// source runs a command for all readers together, one run at a time.
type source struct {
	ask    func(ctx context.Context, home string) ([]byte, error)
	none   string // output that means the same as [fs.ErrNotExist]
	asking singleflight.Group

	mu   sync.Mutex
	last answer
}

// answer is the last result of a command.
type answer struct {
	at    time.Time // zero: it has never run
	text  []byte    // JSON, nil for none
	there bool      // the container has boards or sandboxes
	fault string    // reason for which text is not newer
}

// get returns an answer that is at most as old as old. If none arrives within patience, it returns the last one.
func (s *source) get(home string, old, patience time.Duration) answer {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if s.ask == nil || !last.at.IsZero() && time.Since(last.at) < old {
		return last
	}
	if !last.at.IsZero() && old == besideLook {
		patience = 0 // the next page will have the new answer
	}
	news := s.asking.DoChan("", func() (any, error) { return s.question(home), nil })
	select {
	case said := <-news:
		return said.Val.(answer)
	case <-time.After(patience):
	}
	if last.there {
		last.fault = "cannot ask for more: no answer within " + patience.String()
	}
	return last
}

// question runs the command once. While the kernel holds the command on a volume that hangs, no other one starts.
func (s *source) question(home string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), besideTime)
	defer cancel()
	text, err := s.ask(ctx, home)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.at = time.Now()
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && string(bytes.TrimSpace(text)) == s.none:
		s.last = answer{at: s.last.at}
	case err == nil:
		s.last = answer{at: s.last.at, text: text, there: true}
	default:
		s.last.there, s.last.fault = true, err.Error()
	}
	return s.last
}
