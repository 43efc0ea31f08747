package probe

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Evidence holds the observations of one round about a gateway that may be deaf. A single observation is never enough: a disk may
// be slow, a port in use, or a night quiet.
type Evidence struct {
	Heartbeat, Log Silence
	Asked, Answers bool // Asked: this round probed its /health, which has answered before in this run. Answers: /health answered now
	Idle           bool // the gateway has used no processor time since the last round
	Stopped        bool // a signal has stopped the process (SIGSTOP)
}

// Silence is the time without a regular sign of life.
type Silence struct {
	For      time.Duration
	UsualGap time.Duration // longest time between two signs; 0 if unknown
	AtRest   bool          // the sign also comes while the process is idle
}

const (
	// gapsToKnow is the number of gaps after which the usual gap is known.
	gapsToKnow = 8
	// gapHalfLife is the time after which the usual gap is halved if no sign comes. It is longer than a weekend.
	gapHalfLife = 7 * 24 * time.Hour
	// unusual is the multiple of the usual gap beyond which a silence is unusual.
	unusual = 3
)

// unusual reports whether a silence is longer than a limit, and much longer than usual.
func (s Silence) unusual(after time.Duration) bool {
	return s.UsualGap > 0 && s.For > after && s.For > unusual*s.UsualGap
}

// counts reports whether the silence began in this round, or may become unusual later.
func (s Silence) counts() bool { return s.For == 0 || s.UsualGap > 0 }

// Deaf decides from the evidence whether a gateway is deaf, and says why. A stopped process is deaf. A gateway with a port is
// deaf if /health has answered before and doesn't answer now, and if heartbeats or lines are missing. A gateway without a port is
// deaf if it uses no processor time and lacks both heartbeats and lines, although these came earlier while it was idle.
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
		signs = append(signs, fmt.Sprintf("no heartbeat for %s although it writes one every %s", roundDuration(e.Heartbeat.For), roundDuration(max(e.Heartbeat.UsualGap, time.Second))))
	}
	if e.Asked {
		signs = append(signs, "/health does not answer")
	}
	if lines {
		signs = append(signs, fmt.Sprintf("its log is silent for %s although it writes every %s", roundDuration(e.Log.For), roundDuration(max(e.Log.UsualGap, time.Second))))
	}
	return true, strings.Join(signs, ", ")
}

// roundDuration rounds a duration, so that the text rarely changes.
func roundDuration(d time.Duration) string {
	switch {
	case d >= 2*time.Minute:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	}
	return "less than a second"
}

// silenceMeter measures the usual time between two signs of a gateway. It counts only time in which this process was running.
type silenceMeter struct {
	sinceLastSign time.Duration
	longest       time.Duration
	gaps, atRest  int
	measured      bool
}

// addTime adds the time since the last call. came says whether a sign came in that time, and resting that the process was almost
// idle.
func (h *silenceMeter) addTime(passed time.Duration, came, resting bool) {
	h.sinceLastSign += passed
	if !came {
		return
	}
	if h.measured {
		faded := float64(h.longest) * math.Exp2(-float64(h.sinceLastSign)/float64(gapHalfLife))
		h.longest = max(h.sinceLastSign, time.Duration(faded))
		h.gaps++
		if resting {
			h.atRest++
		}
	}
	h.measured, h.sinceLastSign = true, 0
}

func (h *silenceMeter) silence() Silence {
	s := Silence{For: h.sinceLastSign, AtRest: h.atRest >= gapsToKnow}
	if h.gaps >= gapsToKnow {
		s.UsualGap = h.longest
	}
	return s
}

// signHistory collects the signs of one run over all rounds. A late round counts as timely, because a pause of the container or
// of the machine stops this process too. The first round after a rest is an exception.
type signHistory struct {
	looked     time.Time // time of the last round, by this process's clock
	beats, log silenceMeter
	line       uint64
	beat       time.Time
	ticks      uint64
	// 1 + processor time of all processes of the run at the last measurement; 0 if none was made since the doubt began
	tree     uint64
	answered bool // /health has answered at least once
}

// signs holds the observations of one round about a run.
type signs struct {
	line uint64    // changes with each line
	beat time.Time // changes with each heartbeat; zero if unknown
	usage
}

// needsCloserLook reports whether only a closer examination can show that the run is deaf.
func (h *signHistory) needsCloserLook(e Evidence, after time.Duration) bool {
	doubt := !e.Stopped && (e.Heartbeat.unusual(after) || e.Log.unusual(after))
	if !doubt {
		h.tree = 0
	}
	return doubt
}

// treeIsIdle reports whether all processes of the run have used no processor time since the last closer examination.
func (h *signHistory) treeIsIdle(ticks uint64) bool {
	same := h.tree == ticks+1
	h.tree = ticks + 1
	return same
}

// addRound adds the signs of one round, and returns all evidence. Time since the last round counts up to most.
func (h *signHistory) addRound(now time.Time, most time.Duration, s signs) Evidence {
	first := h.looked.IsZero()
	passed := min(max(now.Sub(h.looked), 0), most)
	used := s.ticks - h.ticks
	if first {
		passed, used = 0, s.ticks
	}
	resting := !first && used <= 1+uint64(passed/restTick)
	beat := !s.beat.IsZero() && !s.beat.Equal(h.beat)
	h.beats.addTime(passed, beat && !h.beat.IsZero(), resting) // a heartbeat before the first round may be old
	h.log.addTime(passed, !first && s.line != h.line, resting)
	if beat {
		h.beat = s.beat
	}
	h.looked, h.line, h.ticks = now, s.line, s.ticks
	return Evidence{Heartbeat: h.beats.silence(), Log: h.log.silence(), Idle: !first && used == 0, Stopped: s.state == 'T'}
}

// restTick is the shortest time in which an idle process uses a tick of processor time (10 ms).
const restTick = 5 * time.Second
