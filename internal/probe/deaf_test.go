package probe

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestDeafAmongFourHundred simulates an hour in which 200 of 400 gateways become deaf. Each of them must be found in time. The
// others have one false sign each: a slow disk, a taken port, a quiet log, or an idle time after a busy one. None of these may
// be reported. In the middle the container is paused for ten hours.
func TestDeafAmongFourHundred(t *testing.T) {
	t.Parallel()
	const after, period, pause = 4 * time.Minute, 30 * time.Second, 10 * time.Hour
	random := rand.New(rand.NewPCG(1, 2))
	missed, accused := 0, 0
	for n := range 400 {
		begin := time.Unix(1e9, 0)
		end := begin.Add(time.Hour)
		deafAt := end.Add(time.Hour)
		if n%2 == 0 {
			deafAt = begin.Add(20*time.Minute + time.Duration(random.IntN(20))*time.Minute)
		}
		asks := n%3 != 0
		quirk := n / 2 % 5
		quirkAt := begin.Add(25 * time.Minute)
		var h signHistory
		beatEvery, lineEvery := time.Duration(5+random.IntN(25))*time.Second, time.Duration(2+random.IntN(20))*time.Second
		s := roundSigns{heartbeat: begin}
		nextBeat, nextLine := begin, begin
		found, bad := time.Time{}, 0
		for now := begin; now.Before(end); now = now.Add(period) {
			living := now.Before(deafAt)
			odd := now.After(quirkAt) && deafAt.After(end)
			eventful := quirk == 4 && deafAt.After(end)
			for ; nextBeat.Before(now) && nextBeat.Before(deafAt); nextBeat = nextBeat.Add(beatEvery/2 + time.Duration(random.Int64N(int64(beatEvery)))) {
				if !odd || quirk != 1 && quirk != 4 {
					s.heartbeat = nextBeat
				}
			}
			for ; nextLine.Before(now) && nextLine.Before(deafAt); nextLine = nextLine.Add(lineEvery/2 + time.Duration(random.Int64N(int64(lineEvery)))) {
				if !odd || quirk != 3 && quirk != 4 {
					s.lineCount++
				}
			}
			switch {
			case !living, eventful && odd:
			case eventful:
				s.CPU += 20 + random.Uint64N(50)
			default:
				s.CPU += random.Uint64N(2)
			}
			clock := now
			if now.Sub(begin) > 30*time.Minute {
				clock = now.Add(pause)
			}
			e := h.addRound(clock, period*3/2, s)
			answers := living && !(odd && quirk == 2)
			h.healthAnswered = h.healthAnswered || asks && answers
			e.ProbedHealth, e.HealthAnswers = h.healthAnswered, answers
			deaf, why := DecideDeaf(e, after)
			if bad++; !deaf {
				bad = 0
			}
			switch {
			case bad < roundsToBeDeaf:
			case living:
				accused++
				t.Errorf("gateway %d lives and is called %q", n, why)
			case found.IsZero():
				found = now
			}
		}
		if deafAt.Before(end) && (found.IsZero() || found.Sub(deafAt) > after+3*time.Minute) {
			missed++
			t.Errorf("gateway %d is deaf since minute %v and found at %v", n, deafAt.Sub(begin), found.Sub(begin))
		}
	}
	t.Logf("of 200 deaf gateways %d missed, of 200 others %d accused", missed, accused)
}

// A gateway counts as deaf only if several signs agree, and the reason must name them.
func TestNoSingleSignAccuses(t *testing.T) {
	t.Parallel()
	long, usual := Silence{Duration: time.Hour, UsualGap: 8 * time.Second, ExpectedWhenIdle: true}, Silence{Duration: 5 * time.Second, UsualGap: 8 * time.Second, ExpectedWhenIdle: true}
	busy := Silence{Duration: time.Hour, UsualGap: 8 * time.Second}
	for _, tt := range []struct {
		e    Evidence
		want string
	}{
		{Evidence{Heartbeat: long, Log: usual, Idle: true}, ""},
		{Evidence{Heartbeat: usual, Log: long, Idle: true}, ""},
		{Evidence{Heartbeat: usual, Log: usual, ProbedHealth: true, Idle: true}, ""},
		// The usual gap of this gateway is unknown.
		{Evidence{Heartbeat: Silence{Duration: time.Hour}, Log: Silence{Duration: time.Hour}, Idle: true}, ""},
		{Evidence{Heartbeat: busy, Log: busy, Idle: true}, ""}, // with such a long usual gap, the gateway may have nothing to do
		{Evidence{Heartbeat: long, Log: long, ProbedHealth: true, HealthAnswers: true, Idle: true}, ""},
		{Evidence{Heartbeat: long, Log: long}, ""}, // not idle: the gateway uses processor time
		{Evidence{Heartbeat: long, Log: long, Idle: true}, "no heartbeat for 1h0m although it writes one every 8s, its log is silent for 1h0m although it writes every 8s"},
		{Evidence{Heartbeat: busy, Log: usual, ProbedHealth: true}, "no heartbeat for 1h0m although it writes one every 8s, /health does not answer"},
		{Evidence{Stopped: true}, "its process is stopped"},
	} {
		deaf, why := DecideDeaf(tt.e, 4*time.Minute)
		if deaf != (tt.want != "") || deaf && why != tt.want {
			t.Errorf("%+v: %t, %q, expected %q", tt.e, deaf, why, tt.want)
		}
	}
}

// TestTheUsualGapBetweenHeartbeatsIsLearnt checks how DeafWatch learns the usual gap. Heartbeats from before the first check
// don't count, a rare heartbeat gives a long gap, and the gap must survive a weekend.
func TestTheUsualGapBetweenHeartbeatsIsLearnt(t *testing.T) {
	t.Parallel()
	var h silenceMeter
	for range 40 {
		h.addTime(time.Minute, false, true)
	}
	if s := h.silence(); s.UsualGap != 0 || s.unusual(0) {
		t.Errorf("one that never came: %+v", s)
	}
	for range 10 {
		h.addTime(20*time.Minute, true, true)
	}
	h.addTime(50*time.Minute, false, true)
	if s := h.silence(); !s.ExpectedWhenIdle || s.unusual(4*time.Minute) {
		t.Errorf("one that comes every 20 min: %+v", s)
	}
	h.addTime(11*time.Minute, false, true)
	if s := h.silence(); !s.unusual(4 * time.Minute) {
		t.Errorf("after an hour: %+v", s)
	}
	h.addTime(60*time.Hour, true, true)
	for range 5 * 24 * 60 {
		h.addTime(time.Minute, true, true)
	}
	h.addTime(60*time.Hour, false, true)
	if s := h.silence(); s.unusual(4 * time.Minute) {
		t.Errorf("on the second weekend: %+v", s)
	}
}
