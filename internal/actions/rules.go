package actions

import "hinit/internal/config"

// actionsOf returns the actions after an event of a service. The service's own actions replace its profile's. These replace the
// actions of all gateways, and these the actions of all services.
func actionsOf(c *config.Config, service, profile, event string) []config.Action {
	if s, known := c.Services[service]; known {
		if list, own := s.On[event]; own {
			return list
		}
	}
	if p, known := c.Profiles.Own[profile]; known && profile != "" {
		if list, own := p.On[event]; own {
			return list
		}
	}
	if list, own := c.Agent.On[event]; own && profile != "" {
		return list
	}
	return c.On[event]
}
