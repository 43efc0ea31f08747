package control

import (
	"slices"

	"hinit/client"
	"hinit/supervisor"
)

// checks returns what the checks of a service say, as the caller may see it: an answer may have words of the service.
func (s *Server) checks(v *supervisor.Service, who peer) []client.Check {
	core, ok := s.core.(Checker)
	if !ok {
		return nil
	}
	out := core.Checks(v.Name)
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

// fails reports whether a check of a service that runs fails.
func (s *Server) fails(v *supervisor.Service) bool {
	core, ok := s.core.(Checker)
	return ok && v.State == supervisor.Up && slices.ContainsFunc(core.Checks(v.Name), func(c client.Check) bool { return c.Failed })
}
