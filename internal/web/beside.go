package web

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// Beside are programs of hinit that know what PID 1 does not. Each returns what its command prints as JSON. The error is
// [fs.ErrNotExist] where there is nothing of the kind.
type Beside struct {
	Boards    func(ctx context.Context, home string) ([]byte, error) // hinit kanban stats --all
	Sandboxes func(ctx context.Context, home string) ([]byte, error) // hinit sandbox ls --json
}

const (
	besideFresh = 2 * time.Second  // how old an answer may be that a page shows
	besideLook  = 30 * time.Second // how often it is looked whether there is something of the kind
	besideTime  = 5 * time.Second  // for an answer

	besidePatience = time.Second // with the first one, before a page goes without
)

// source asks a program, one question at a time, for all who read.
type source struct {
	ask    func(ctx context.Context, home string) ([]byte, error)
	asking singleflight.Group

	mu   sync.Mutex
	last answer
}

// answer is what a program said last.
type answer struct {
	at    time.Time // the zero time: it was never asked
	text  []byte    // JSON, nil for none
	there bool      // there is something of the kind
	fault string    // why there is no newer text
}

// get returns an answer that is not older than it may be, or the last one when none comes in time.
func (s *source) get(home string, old, patience time.Duration) answer {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if s.ask == nil || !last.at.IsZero() && time.Since(last.at) < old {
		return last
	}
	if !last.at.IsZero() && old == besideLook {
		patience = 0 // the news can wait for the next page
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

// question asks once. A program that the kernel holds, on a volume that hangs, keeps the next question from being asked.
func (s *source) question(home string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), besideTime)
	defer cancel()
	text, err := s.ask(ctx, home)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.at = time.Now()
	switch {
	case err == nil:
		s.last = answer{at: s.last.at, text: text, there: true}
	case errors.Is(err, fs.ErrNotExist):
		s.last = answer{at: s.last.at}
	default:
		s.last.there, s.last.fault = true, err.Error()
	}
	return s.last
}
