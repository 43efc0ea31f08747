// Package v1alpha1 defines the two kinds of a fleet in the Kubernetes API: AgentPool, a set of pods that host agents, and
// AgentProfile, one agent. Manifests of users, the controller and the hosts share these types.
//
// The package owns no goroutine.
//
// +kubebuilder:object:generate=true
// +groupName=agents.hinit.dev
package v1alpha1
