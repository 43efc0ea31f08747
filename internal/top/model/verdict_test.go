package model

import (
	"fmt"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/top/frame"
)

func allServiceStates() (all []client.Service) {
	for _, state := range []string{
		client.StateDown, client.StateWaiting, client.StateStarting, client.StateUp, client.StateStopping, client.StateKilling,
		client.StateFinishing, client.StateBackoff, client.StateParked, client.StateFailed,
	} {
		for bits := range 1 << 7 {
			s := client.Service{Name: fmt.Sprintf("%s-%d", state, bits), Kind: client.KindGateway, State: state, Want: client.WantUp, Ready: bits&1 == 0, Since: time.Now()}
			if bits&2 != 0 {
				s.Want = client.WantDown
			}
			s.CrashLoop, s.Paused = bits&4 != 0, bits&8 != 0
			if bits&16 != 0 {
				s.Checks = append(s.Checks, client.Check{Name: "deaf", Type: "deaf", Failed: true})
			}
			if bits&32 != 0 {
				s.Checks = append(s.Checks, client.Check{Name: "health", Type: "http", Failed: true})
			}
			if bits&64 != 0 {
				s.Problem = "a word"
			}
			all = append(all, s)
		}
	}
	return all
}

func TestTopSaysTheSameOfEveryServiceAsStatus(t *testing.T) {
	m := New(0, "")
	for _, s := range allServiceStates() {
		verdict := show.VerdictOf(&s)
		grade := m.gradeOf(Service{&s, 0})
		role := gradeMarks[grade].role
		if (role == frame.Bad) != verdict.NeedsAttention() || (role == frame.Good) != (verdict.Grade == show.GradeHealthy) || (grade <= gradeImpaired) != verdict.NeedsAttention() {
			t.Errorf("%+v: top draws %v, the verdict is %+v", s, role, verdict)
		}
	}
}
