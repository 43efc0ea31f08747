package gateways

import "hinit/profiles"

// WarnIfMissing queues a job that logs a message. Tests use it to see when the jobs before it are done.
func (m *Manager) WarnIfMissing(service, profile string) { m.warnIfMissing(service, profile) }

// ExpectLate is a part of [Manager.RegisterProfiles].
func (m *Manager) ExpectLate(plan profiles.Plan) { m.storeUnread(plan) }

// NotePrior is a part of [Manager.RegisterProfiles].
func (m *Manager) NotePrior(d profiles.Decision) { m.recordNotStarted(d) }
