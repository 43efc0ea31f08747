package probe

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Evidence is what one look finds of a gateway that may be up and deaf. No single sign of it is enough: a disk may be slow, a port taken, a
// night quiet.
type Evidence struct {
	Heartbeat, Log Silence
	Asked, Answers bool // its /health has answered in this run and was asked; it answers now
	Idle           bool // it has used no processor time since the look before
	Stopped        bool // its process is stopped (SIGSTOP)
}

// Silence is how long something has not come that comes now and then.
type Silence struct {
	For      time.Duration
	UsualGap time.Duration // the longest time between two of them; 0 for not known
	AtRest   bool          // it is known to come also while the process has nothing to do
}

const (
	// gapsToKnow is how many gaps it takes to know the usual gap.
	gapsToKnow = 8
	// gapHalfLife is the time in which the usual gap becomes half as long without a sign: longer than a weekend.
	gapHalfLife = 7 * 24 * time.Hour
	// unusual is how many usual gaps a silence has to last.
	unusual = 3
)

// unusual reports whether a silence is longer than usual.
func (s Silence) unusual(after time.Duration) bool {
	return s.UsualGap > 0 && s.For > after && s.For > unusual*s.UsualGap
}

// Deaf reports whether a gateway is deaf by the evidence, and why, for people. A stopped process is deaf. With a port, a gateway
// is deaf when /health has answered and is now silent, and heartbeats or lines are missing. Without a port, it is deaf when both
// are missing that came while it was idle, and it uses no processor time.
func Deaf(e Evidence, after time.Duration) (deaf bool, why string) {
	if e.Stopped {
		return true, "its process is stopped"
	}
	beats, lines := e.Heartbeat.unusual(after), e.Log.unusual(after)
	switch {
	case e.Asked && (e.Answers || !beats && !lines),
		!e.Asked && !(beats && lines && e.Heartbeat.AtRest && e.Log.AtRest && e.Idle):
		return false, "it shows signs of life"
	}
	var signs []string
	if beats {
		signs = append(signs, fmt.Sprintf("no heartbeat for %s although it writes one every %s", rough(e.Heartbeat.For), rough(max(e.Heartbeat.UsualGap, time.Second))))
	}
	if e.Asked {
		signs = append(signs, "/health does not answer")
	}
	if lines {
		signs = append(signs, fmt.Sprintf("its log is silent for %s although it writes every %s", rough(e.Log.For), rough(max(e.Log.UsualGap, time.Second))))
	}
	return true, strings.Join(signs, ", ")
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

// usualGap measures the usual time between two signs of a gateway. It counts only time in which this process looked.
type usualGap struct {
	silent       time.Duration
	longest      time.Duration
	gaps, atRest int
	met          bool
}

// pass notes that time has passed, and whether it came in that time; resting says that the process had next to nothing to do.
func (h *usualGap) pass(passed time.Duration, came, resting bool) {
	h.silent += passed
	if !came {
		return
	}
	if h.met {
		faded := float64(h.longest) * math.Exp2(-float64(h.silent)/float64(gapHalfLife))
		h.longest = max(h.silent, time.Duration(faded))
		h.gaps++
		if resting {
			h.atRest++
		}
	}
	h.met, h.silent = true, 0
}

func (h *usualGap) silence() Silence {
	s := Silence{For: h.silent, AtRest: h.atRest >= gapsToKnow}
	if h.gaps >= gapsToKnow {
		s.UsualGap = h.longest
	}
	return s
}

// signHistory is the evidence that the looks at one run have found. A pause of the container or of the machine also stops this
// process, so a late look counts as one in time.
type signHistory struct {
	looked     time.Time // when, by the clock of this process
	beats, log usualGap
	line       uint64
	beat       time.Time
	ticks      uint64
	tree       uint64 // processor time of all its processes at the last count; 0: not counted since the doubt began
	answered   bool   // its /health has answered
}

// signs are what a look sees.
type signs struct {
	line uint64    // changes with each line
	beat time.Time // changes with each heartbeat; zero: nothing is known of it
	usage
}

// doubts reports whether it takes a closer look to tell whether the run is deaf.
func (h *signHistory) doubts(e Evidence, after time.Duration) bool {
	doubt := !e.Stopped && (e.Heartbeat.unusual(after) || e.Log.unusual(after))
	if !doubt {
		h.tree = 0
	}
	return doubt
}

// treeRests reports whether all processes of the run have used no processor time since the closer look before.
func (h *signHistory) treeRests(ticks uint64) bool {
	same := h.tree == ticks+1
	h.tree = ticks + 1
	return same
}

// look takes what a look sees, one every period.
func (h *signHistory) look(now time.Time, period time.Duration, s signs) Evidence {
	first := h.looked.IsZero()
	passed := min(max(now.Sub(h.looked), 0), period*3/2)
	used := s.ticks - h.ticks
	if first {
		passed, used = 0, s.ticks
	}
	resting := !first && used <= 1+uint64(passed/restTick)
	beat := !s.beat.IsZero() && !s.beat.Equal(h.beat)
	h.beats.pass(passed, beat && !h.beat.IsZero(), resting) // what was there at the first look may be old
	h.log.pass(passed, !first && s.line != h.line, resting)
	if beat {
		h.beat = s.beat
	}
	h.looked, h.line, h.ticks = now, s.line, s.ticks
	return Evidence{Heartbeat: h.beats.silence(), Log: h.log.silence(), Idle: !first && used == 0, Stopped: s.state == 'T'}
}

// restTick is how long it takes a process at rest to use a tick of processor time (10 ms) at least.
const restTick = 5 * time.Second
