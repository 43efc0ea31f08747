package probe

import (
	"fmt"
	"math"
	"strings"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/procstat"
)

// Evidence holds the observations of one round of [DeafWatch] about a gateway that may be deaf: running, but no longer reacting.
// A single observation is never enough: a disk may be slow, another program may use the port, or a night may be quiet.
type Evidence struct {
	// Heartbeat and Log describe the time since the gateway's last heartbeat and its last log line.
	Heartbeat, Log Silence
	// ProbedHealth is true if this round has probed the gateway's /health, which answered earlier in this run. HealthAnswers is
	// true if it answered now.
	ProbedHealth, HealthAnswers bool
	Idle                        bool // the gateway has used no processor time since the last round
	Stopped                     bool // a signal has stopped the process (SIGSTOP)
}

// Silence describes the absence of a regular sign of life (a heartbeat or a log line).
type Silence struct {
	For      time.Duration
	UsualGap time.Duration // longest time between two signs so far; 0 if unknown
	AtRest   bool          // the sign also comes while the process is idle
}

const (
	// gapsToKnow is the number of gaps between signs after which the usual gap is known.
	gapsToKnow = 8
	// gapHalfLife is the time in which the usual gap is halved if all new gaps are shorter. It is longer than a weekend.
	gapHalfLife = 7 * 24 * time.Hour
	// unusualFactor is the multiple of the usual gap that a silence must exceed to be unusual.
	unusualFactor = 3
)

// unusual reports whether a silence is much longer than usual. A silence that is shorter than the argument after is never
// unusual.
func (s Silence) unusual(after time.Duration) bool {
	return s.UsualGap > 0 && s.For > after && s.For > unusualFactor*s.UsualGap
}

// mayBecomeUnusual reports whether a later round of checks may find this silence unusual: its usual gap is known, or it has just
// begun.
func (s Silence) mayBecomeUnusual() bool { return s.For == 0 || s.UsualGap > 0 }

// Deaf decides from the evidence whether a gateway is deaf, and returns the reason. A stopped process is deaf. A gateway whose
// /health has answered earlier is deaf if /health doesn't answer now, and heartbeats or log lines are missing. Any other gateway
// is deaf if all three signs are missing: processor time, heartbeats and log lines. The last two count only if they have come
// earlier while the gateway was idle. Heartbeats or lines are missing if their silence is unusual. An unusual silence is longer
// than the argument after.
func Deaf(e Evidence, after time.Duration) (deaf bool, why string) {
	if e.Stopped {
		return true, "its process is stopped"
	}
	beats, lines := e.Heartbeat.unusual(after), e.Log.unusual(after)
	switch {
	case e.ProbedHealth && (e.HealthAnswers || !beats && !lines),
		!e.ProbedHealth && !(beats && lines && e.Heartbeat.AtRest && e.Log.AtRest && e.Idle):
		return false, "it shows signs of life"
	}
	var signs []string
	if beats {
		signs = append(signs, fmt.Sprintf("no heartbeat for %s although it writes one every %s", roundDuration(e.Heartbeat.For), roundDuration(max(e.Heartbeat.UsualGap, time.Second))))
	}
	if e.ProbedHealth {
		signs = append(signs, "/health does not answer")
	}
	if lines {
		signs = append(signs, fmt.Sprintf("its log is silent for %s although it writes every %s", roundDuration(e.Log.For), roundDuration(max(e.Log.UsualGap, time.Second))))
	}
	return true, strings.Join(signs, ", ")
}

// roundDuration rounds a duration for a text, so that the text does not change in every round.
func roundDuration(d time.Duration) string {
	switch {
	case d >= 2*time.Minute:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	}
	return "less than a second"
}

// silenceMeter learns how much time usually passes between two signs of a gateway. It counts only time in which this process
// was running.
type silenceMeter struct {
	sinceLastSign time.Duration
	longest       time.Duration
	gaps, atRest  int
	measured      bool
}

// addTime adds passed, the time since the last call. came is true if a sign came in that time. resting is true if the process
// used almost no processor time.
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

// signHistory collects the signs of one run over all rounds. If a round is late, its delay does not count as silence, because a
// pause of the container or the machine also stops this process. The first round after the rounds were suspended is an
// exception.
type signHistory struct {
	lastRound  time.Time // time of the last round, by this process's clock
	beats, log silenceMeter
	line       uint64
	beat       time.Time
	ticks      uint64
	// 1 + processor time of all processes of the run when they were last examined more closely; 0 if not examined since the doubt
	// began
	tree     uint64
	answered bool // /health has answered at least once
}

// signs holds the observations of one round about a run.
type signs struct {
	line          uint64    // number of log lines so far
	beat          time.Time // time of the last heartbeat; zero if unknown
	procstat.Stat           // of the main process
}

// needsCloserLook reports whether the run may be deaf, so that it must be examined more closely (/health, state file).
func (h *signHistory) needsCloserLook(e Evidence, after time.Duration) bool {
	doubt := !e.Stopped && (e.Heartbeat.unusual(after) || e.Log.unusual(after))
	if !doubt {
		h.tree = 0
	}
	return doubt
}

// treeIsIdle reports whether all processes of the run have used no processor time since they were last examined more closely.
// ticks is the processor time of these processes.
func (h *signHistory) treeIsIdle(ticks uint64) bool {
	same := h.tree == ticks+1
	h.tree = ticks + 1
	return same
}

// addRound adds the signs of one round, and returns the evidence so far. A round lengthens a silence by the time since the
// previous round, but by no more than the duration most.
func (h *signHistory) addRound(now time.Time, most time.Duration, s signs) Evidence {
	first := h.lastRound.IsZero()
	passed := min(max(now.Sub(h.lastRound), 0), most)
	ticks := s.CPU + s.Waited
	used := ticks - h.ticks
	if first {
		passed, used = 0, ticks
	}
	resting := !first && used <= 1+uint64(passed/idleTickInterval)
	beat := !s.beat.IsZero() && !s.beat.Equal(h.beat)
	h.beats.addTime(passed, beat && !h.beat.IsZero(), resting) // not for the first heartbeat that a round sees, which may be old
	h.log.addTime(passed, !first && s.line != h.line, resting)
	if beat {
		h.beat = s.beat
	}
	h.lastRound, h.line, h.ticks = now, s.line, ticks
	return Evidence{Heartbeat: h.beats.silence(), Log: h.log.silence(), Idle: !first && used == 0, Stopped: s.State == 'T'}
}

// idleTickInterval is the shortest time in which an idle process uses one tick (10 ms) of processor time.
const idleTickInterval = 5 * time.Second

// readStat reads one process. The State is 0 if the process does not exist.
func readStat(pid int) procstat.Stat {
	st, _ := blocking.Get(blocking.Short, func() (procstat.Stat, error) { return procstat.Read(pid) })
	return st
}

// treeTicks returns, for each process, the number of ticks that the process and all its descendants have used.
func treeTicks() map[int]uint64 {
	all := make(map[int]procstat.Stat)
	_ = runShortCall(func() error {
		return procstat.Each("/proc", func(st procstat.Stat) { all[st.PID] = st })
	})
	sums := make(map[int]uint64, len(all))
	for pid, u := range all {
		for at, depth := pid, 0; at > 0 && depth <= len(all); depth++ { // the limit ends a cycle of parents, which may appear because parents change while /proc is read
			sums[at] += u.CPU + u.Waited
			at = all[at].Parent
		}
	}
	return sums
}
