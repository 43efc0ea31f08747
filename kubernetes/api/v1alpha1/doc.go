// Package v1alpha1 has the two kinds of a fleet: AgentPool, a set of pods that host agents, and AgentProfile, one agent.
//
// The package only defines types and constants. It owns no goroutine.
//
// +kubebuilder:object:generate=true
// +groupName=agents.hinit.dev
package v1alpha1
