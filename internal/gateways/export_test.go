package gateways

import "hinit/profiles"

// WarnIfMissing queues a job that logs a message. Tests use it to see when the jobs before it are done.
func (m *Manager) WarnIfMissing(service, profile string) { m.warnIfMissing(service, profile) }

// ExpectLate remembers the profiles that the boot could not read, as [Manager.RegisterProfiles] does.
func (m *Manager) ExpectLate(plan profiles.Plan) { m.storeUnread(plan) }

// Remembered returns how many profiles the Manager knows anything about.
func (m *Manager) Remembered() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.gateways.byProfile)
}

// FollowState queues the job that reads a state file.
func (m *Manager) FollowState(profile string) {
	m.enqueue(profile, func() { m.updateFromStateFile(profile) })
}

// NotePrior remembers that a gateway is not started at boot, as [Manager.RegisterProfiles] does.
func (m *Manager) NotePrior(d profiles.Decision) { m.recordNotStarted(d) }
