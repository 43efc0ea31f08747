package control

import (
	"hinit/client"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

// checks returns the results of a service's checks, as far as the caller may see them: an answer may quote the service's output.
func (s *Server) checks(v *supervisor.Service, who peer) []client.Check {
	out := s.core.Checks(v.Name)
	for i := range out {
		c := &out[i]
		c.Since = wireTime(c.Since)
		if c.At != nil {
			at := wireTime(*c.At)
			c.At = &at
		}
		if s.policy.classOf(who) == otherClass {
			c.Answer = ""
		}
	}
	return out
}

// judge decides how a service is, as every view of its status does.
func (s *Server) judge(v *supervisor.Service) show.Verdict {
	out := client.Service{
		State: string(v.State), Want: string(v.Want), Ready: v.Ready, CrashLoop: v.CrashLoop, Paused: paused(v, look(v.PID)), Problem: s.problem(v, true), ServedBy: s.core.ServedBy(v),
		Checks: s.core.Checks(v.Name),
	}
	return show.Judge(&out)
}
