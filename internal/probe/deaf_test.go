package probe

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestDeafAmongFourHundred simulates an hour: 200 of 400 gateways become deaf at some moment; each of them is found in time, and none of
// the others is accused, though each has a sign that would accuse it alone: a slow disk, a port that is taken, a quiet log.
func TestDeafAmongFourHundred(t *testing.T) {
	t.Parallel()
	const after, period = 4 * time.Minute, 30 * time.Second
	random := rand.New(rand.NewPCG(1, 2))
	missed, accused := 0, 0
	for n := range 400 {
		begin := time.Unix(1e9, 0)
		deafAt := begin.Add(2 * time.Hour)
		if n%2 == 0 {
			deafAt = begin.Add(20*time.Minute + time.Duration(random.IntN(20))*time.Minute)
		}
		asks := n%3 != 0
		quirk := n / 2 % 4 // of the living: 1 the disk is slow, 2 the port is taken, 3 the log is quiet
		quirkAt := begin.Add(25 * time.Minute)
		var beats, lines habit
		beatEvery, lineEvery := time.Duration(5+random.IntN(25))*time.Second, time.Duration(2+random.IntN(20))*time.Second
		nextBeat, nextLine := begin, begin
		found := time.Time{}
		for now := begin; now.Before(begin.Add(time.Hour)); now = now.Add(period) {
			living := now.Before(deafAt)
			odd := now.After(quirkAt) && deafAt.After(begin.Add(time.Hour))
			for ; nextBeat.Before(now) && nextBeat.Before(deafAt); nextBeat = nextBeat.Add(beatEvery/2 + time.Duration(random.Int64N(int64(beatEvery)))) {
				if !odd || quirk != 1 {
					beats.saw(nextBeat)
				}
			}
			for ; nextLine.Before(now) && nextLine.Before(deafAt); nextLine = nextLine.Add(lineEvery/2 + time.Duration(random.Int64N(int64(lineEvery)))) {
				if !odd || quirk != 3 {
					lines.saw(nextLine)
				}
			}
			e := Evidence{Heartbeat: beats.silence(now), Log: lines.silence(now), Asked: asks, Answers: living && !(odd && quirk == 2), Idle: !living || random.IntN(2) == 0}
			deaf, why := Deaf(e, after)
			switch {
			case deaf && living:
				accused++
				t.Errorf("gateway %d lives and is called %q", n, why)
			case deaf && found.IsZero():
				found = now
			}
		}
		if deafAt.Before(begin.Add(time.Hour)) && (found.IsZero() || found.Sub(deafAt) > after+2*time.Minute) {
			missed++
			t.Errorf("gateway %d is deaf since minute %v and found at %v", n, deafAt.Sub(begin), found.Sub(begin))
		}
	}
	t.Logf("of 200 deaf gateways %d missed, of 200 others %d accused", missed, accused)
}

// TestNoSingleSignAccuses, and the words say what was found.
func TestNoSingleSignAccuses(t *testing.T) {
	t.Parallel()
	long, usual := Silence{For: time.Hour, Habit: 8 * time.Second}, Silence{For: 5 * time.Second, Habit: 8 * time.Second}
	for _, tt := range []struct {
		e    Evidence
		want string
	}{
		{Evidence{Heartbeat: long, Log: usual, Idle: true}, ""},
		{Evidence{Heartbeat: usual, Log: long, Idle: true}, ""},
		{Evidence{Heartbeat: usual, Log: usual, Asked: true, Idle: true}, ""},
		{Evidence{Heartbeat: Silence{For: time.Hour}, Log: Silence{For: time.Hour}, Idle: true}, ""}, // no habit is known
		{Evidence{Heartbeat: long, Log: long, Asked: true, Answers: true, Idle: true}, ""},
		{Evidence{Heartbeat: long, Log: long}, ""}, // it works
		{Evidence{Heartbeat: long, Log: long, Idle: true}, "deaf: no heartbeat for 1h0m although it writes one every 8s, its log is silent for 1h0m although it writes every 8s"},
		{Evidence{Heartbeat: long, Log: usual, Asked: true}, "deaf: no heartbeat for 1h0m although it writes one every 8s, /health does not answer"},
		{Evidence{Stopped: true}, "deaf: its process is stopped"},
	} {
		deaf, why := Deaf(tt.e, 4*time.Minute)
		if deaf != (tt.want != "") || deaf && why != tt.want {
			t.Errorf("%+v: %t, %q, expected %q", tt.e, deaf, why, tt.want)
		}
	}
}
