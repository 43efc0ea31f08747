package gateways

import "hinit/profiles"

// WarnIfMissing queues a job that logs a message. The message shows a test that all earlier jobs are done.
func (m *Manager) WarnIfMissing(service, profile string) { m.warnIfMissing(service, profile) }

// StoreUnread stores profiles as unread, as [Manager.RegisterProfiles] does.
func (m *Manager) StoreUnread(plan profiles.Plan) { m.storeUnread(plan) }

// RecordCount returns the number of profiles with a record in the Manager.
func (m *Manager) RecordCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.gateways.byProfile)
}

func (m *Manager) ReadStateFile(profile string) {
	m.enqueue(profile, func() { m.updateFromStateFile(profile) })
}

// RecordNotStarted stores that a gateway is not started at boot, as [Manager.RegisterProfiles] does.
func (m *Manager) RecordNotStarted(d profiles.Decision) { m.recordNotStarted(d) }
