package probe

import (
	"fmt"
	"strings"
	"time"
)

// Evidence is what one look finds of a gateway that may be up and deaf. No single sign of it is enough: a disk may be slow, a port taken, a
// night quiet.
type Evidence struct {
	Heartbeat, Log Silence
	Asked, Answers bool // its /health was asked, and answers
	Idle           bool // it has used no processor time since the look before
	Stopped        bool // its process is stopped (SIGSTOP)
}

// Silence is how long something has not come that comes now and then.
type Silence struct {
	For   time.Duration
	Habit time.Duration // the longest time between two of them lately; 0 for not known
}

const (
	// habitCount is how many gaps it takes to know a habit.
	habitCount = 8
	// habitFade is what is left of the longest gap with each that follows.
	habitFade = 0.98
	// unusual is how many times the habit a silence has to last.
	unusual = 3
)

// unusual reports whether a silence is against the habit.
func (s Silence) unusual(after time.Duration) bool {
	return s.Habit > 0 && s.For > after && s.For > unusual*s.Habit
}

// Deaf reports whether a gateway is deaf by the evidence, and why, for people. It is when its process is stopped, or when two signs of three say so that
// don't depend on each other: no heartbeat, no answer, no lines. Without a port to ask, processor time has to be missing too.
func Deaf(e Evidence, after time.Duration) (deaf bool, why string) {
	if e.Stopped {
		return true, "deaf: its process is stopped"
	}
	var signs []string
	if e.Heartbeat.unusual(after) {
		signs = append(signs, fmt.Sprintf("no heartbeat for %s although it writes one every %s", rough(e.Heartbeat.For), rough(e.Heartbeat.Habit)))
	}
	if e.Asked && !e.Answers {
		signs = append(signs, "/health does not answer")
	}
	if e.Log.unusual(after) {
		signs = append(signs, fmt.Sprintf("its log is silent for %s although it writes every %s", rough(e.Log.For), rough(e.Log.Habit)))
	}
	switch {
	case e.Asked && e.Answers, len(signs) < 2, !e.Asked && !e.Idle:
		return false, "it shows signs of life"
	}
	return true, "deaf: " + strings.Join(signs, ", ")
}

// rough rounds so that the words stay the same for a while.
func rough(d time.Duration) string {
	switch {
	case d >= 2*time.Minute:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	}
	return "less than a second"
}

// habit learns how long something usually stays away.
type habit struct {
	last    time.Time
	longest time.Duration
	gaps    int
}

// saw notes that it came. The same moment again is nothing new.
func (h *habit) saw(at time.Time) {
	if !at.After(h.last) {
		return
	}
	if !h.last.IsZero() {
		h.longest = max(at.Sub(h.last), time.Duration(float64(h.longest)*habitFade))
		h.gaps++
	}
	h.last = at
}

// silence is how long it has not come, by the habit.
func (h *habit) silence(now time.Time) Silence {
	s := Silence{For: now.Sub(h.last)}
	if h.gaps >= habitCount {
		s.Habit = h.longest
	}
	return s
}
