package gateways

import "hinit/profiles"

// WarnIfMissing queues a job that logs a message. The message shows a test that all earlier jobs are done.
func (m *Manager) WarnIfMissing(service, profile string) { m.warnIfMissing(service, profile) }

// ExpectLate stores profiles as unread, as [Manager.RegisterProfiles] does.
func (m *Manager) ExpectLate(plan profiles.Plan) { m.storeUnread(plan) }

// Remembered returns the number of profiles with a record in the Manager.
func (m *Manager) Remembered() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.gateways.byProfile)
}

func (m *Manager) FollowState(profile string) {
	m.enqueue(profile, func() { m.updateFromStateFile(profile) })
}

// NotePrior stores that a gateway is not started at boot, as [Manager.RegisterProfiles] does.
func (m *Manager) NotePrior(d profiles.Decision) { m.recordNotStarted(d) }
