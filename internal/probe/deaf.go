package probe

import (
	"fmt"
	"math"
	"strings"
	"time"

	"hinit/internal/procstat"
)

// Evidence contains the observations of one examination (round) of a gateway by [DeafWatch]. A deaf gateway runs, but does not
// react. One observation alone proves nothing: a disk may be slow, another program may use the port, or users may be asleep.
type Evidence struct {
	// Heartbeat and Log describe the time since the last heartbeat and the last log line.
	Heartbeat, Log Silence
	// ProbedHealth means that this round has asked the gateway's /health, which had answered before in this run. HealthAnswers
	// means that it has answered now.
	ProbedHealth, HealthAnswers bool
	Idle                        bool // the gateway has used no processor time since the last round
	Stopped                     bool // a signal has stopped the process (SIGSTOP)
}

// Silence describes how long a regular sign of life (heartbeat or log line) has been missing.
type Silence struct {
	Duration         time.Duration
	UsualGap         time.Duration // longest time between two signs, of which half is forgotten after each gapHalfLife; 0 if unknown
	ExpectedWhenIdle bool          // the sign usually comes even while the process is idle, so its absence is evidence
}

const (
	// minGaps is the number of gaps between signs that DeafWatch must measure to know the usual gap.
	minGaps = 8
	// gapHalfLife is the time after which half of a long gap is forgotten. It is longer than a weekend, so that a weekly
	// pause counts as usual.
	gapHalfLife = 7 * 24 * time.Hour
	// unusualFactor is the multiple of the usual gap that makes a silence unusual.
	unusualFactor = 3
)

// unusual reports whether a silence is much longer than the usual gap, and longer than after.
func (s Silence) unusual(after time.Duration) bool {
	return s.UsualGap > 0 && s.Duration > after && s.Duration > unusualFactor*s.UsualGap
}

// mayBecomeUnusual reports whether a later round may find this silence unusual without another sign. Otherwise the rounds can
// be suspended.
func (s Silence) mayBecomeUnusual() bool { return s.Duration == 0 || s.UsualGap > 0 }

// DecideDeaf decides from the evidence whether a gateway is deaf, and says why. A gateway is deaf in each of these cases:
//
//   - Its process is stopped.
//   - Its /health answered before but does not answer now, and heartbeats or log lines are missing.
//   - It has no /health, has used no processor time, and both heartbeats and log lines are missing, although both used to
//     come while it was idle.
//
// A sign is missing if its silence is unusual and longer than the parameter after.
func DecideDeaf(e Evidence, after time.Duration) (deaf bool, why string) {
	if e.Stopped {
		return true, "its process is stopped"
	}
	beats, lines := e.Heartbeat.unusual(after), e.Log.unusual(after)
	switch {
	case e.ProbedHealth && (e.HealthAnswers || !beats && !lines),
		!e.ProbedHealth && !(beats && lines && e.Heartbeat.ExpectedWhenIdle && e.Log.ExpectedWhenIdle && e.Idle):
		return false, "it shows signs of life"
	}
	var signs []string
	if beats {
		signs = append(signs, fmt.Sprintf("no heartbeat for %s although it writes one every %s", roundDuration(e.Heartbeat.Duration), roundDuration(max(e.Heartbeat.UsualGap, time.Second))))
	}
	if e.ProbedHealth {
		signs = append(signs, "/health does not answer")
	}
	if lines {
		signs = append(signs, fmt.Sprintf("its log is silent for %s although it writes every %s", roundDuration(e.Log.Duration), roundDuration(max(e.Log.UsualGap, time.Second))))
	}
	return true, strings.Join(signs, ", ")
}

// roundDuration rounds a duration in a reason, so that the text does not change in every round.
func roundDuration(d time.Duration) string {
	switch {
	case d >= 2*time.Minute:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	}
	return "less than a second"
}

// silenceMeter learns how much time usually passes between two signs of a gateway. Time in which hinit did not run does not
// count.
type silenceMeter struct {
	sinceLastSign              time.Duration
	longestGap                 time.Duration
	gapCount, expectedWhenIdle int
	measured                   bool
}

// addTime adds the time since the last call. signSeen means that a sign came in that time. resting means that the process used
// almost no processor time.
func (h *silenceMeter) addTime(passed time.Duration, signSeen, resting bool) {
	h.sinceLastSign += passed
	if !signSeen {
		return
	}
	if h.measured {
		faded := float64(h.longestGap) * math.Exp2(-float64(h.sinceLastSign)/float64(gapHalfLife))
		h.longestGap = max(h.sinceLastSign, time.Duration(faded))
		h.gapCount++
		if resting {
			h.expectedWhenIdle++
		}
	}
	h.measured, h.sinceLastSign = true, 0
}

func (h *silenceMeter) silence() Silence {
	s := Silence{Duration: h.sinceLastSign, ExpectedWhenIdle: h.expectedWhenIdle >= minGaps}
	if h.gapCount >= minGaps {
		s.UsualGap = h.longestGap
	}
	return s
}

// signHistory collects the signs of one run over all rounds. The delay of a late round does not count as silence, because a
// pause of the container stops hinit too. The first round after a suspension of the rounds is late on purpose, and its delay
// counts.
type signHistory struct {
	lastRound       time.Time // time of the last round, by hinit's clock
	heartbeats, log silenceMeter
	lineCount       uint64
	lastHeartbeat   time.Time
	cpuTicks        uint64
	// treeTicksSeen is 1 plus the processor time, in ticks, of all processes of the run at the last close examination. It is 0
	// without such an examination since the present silence became unusual.
	treeTicksSeen  uint64
	healthAnswered bool // /health has answered at least once in this run
}

// roundSigns are the signs of one run of a gateway in one round of [DeafWatch].
type roundSigns struct {
	lineCount uint64    // number of log lines so far
	heartbeat time.Time // time of the last heartbeat; zero if unknown
	procstat.Stat
}

// needsCloserLook reports whether a silence is unusual, so that the round must also ask the gateway's /health and read its
// state file.
func (h *signHistory) needsCloserLook(e Evidence, after time.Duration) bool {
	suspicious := !e.Stopped && (e.Heartbeat.unusual(after) || e.Log.unusual(after))
	if !suspicious {
		h.treeTicksSeen = 0
	}
	return suspicious
}

// treeIsIdle reports whether all processes of the run together have used no processor time since the last close examination.
// ticks is their present processor time.
func (h *signHistory) treeIsIdle(ticks uint64) bool {
	same := h.treeTicksSeen == ticks+1
	h.treeTicksSeen = ticks + 1
	return same
}

// addRound adds the signs of one round and returns the evidence so far. Each silence grows by the time since the last round,
// but at most by most.
func (h *signHistory) addRound(now time.Time, most time.Duration, s roundSigns) Evidence {
	first := h.lastRound.IsZero()
	passed := min(max(now.Sub(h.lastRound), 0), most)
	ticks := s.CPU + s.ReapedCPU
	used := ticks - h.cpuTicks
	if first {
		passed, used = 0, ticks
	}
	resting := !first && used <= 1+uint64(passed/idleTickInterval)
	beat := !s.heartbeat.IsZero() && !s.heartbeat.Equal(h.lastHeartbeat)
	// the first heartbeat may be old, so the time since then is no gap
	h.heartbeats.addTime(passed, beat && !h.lastHeartbeat.IsZero(), resting)
	h.log.addTime(passed, !first && s.lineCount != h.lineCount, resting)
	if beat {
		h.lastHeartbeat = s.heartbeat
	}
	h.lastRound, h.lineCount, h.cpuTicks = now, s.lineCount, ticks
	return Evidence{Heartbeat: h.heartbeats.silence(), Log: h.log.silence(), Idle: !first && used == 0, Stopped: s.State == 'T'}
}

// idleTickInterval is the shortest time in which an idle process uses one tick (10 ms) of processor time.
const idleTickInterval = 5 * time.Second

// cpuTicksByTree returns the processor time of each process with its descendants, in ticks.
func cpuTicksByTree() map[int]uint64 {
	all := make(map[int]procstat.Stat)
	_ = runShortCall(func() error {
		return procstat.EachProcess("/proc", func(st procstat.Stat) { all[st.PID] = st })
	})
	sums := make(map[int]uint64, len(all))
	for pid, u := range all {
		// parents may change while /proc is being read, so the depth limit ends a cycle of parents
		for at, depth := pid, 0; at > 0 && depth <= len(all); depth++ {
			sums[at] += u.CPU + u.ReapedCPU
			at = all[at].Parent
		}
	}
	return sums
}
