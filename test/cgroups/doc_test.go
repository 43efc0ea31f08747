// Package cgroups_test runs whole containers with control groups of version 2, as Kubernetes and Podman provide them. hinit
// is PID 1 of namespaces, in its own control group, in which it may create other groups or not. Every gateway is an example
// agent.
//
//	make test-kernel
//
// The tests need root, and a control group hierarchy of version 2 with the controllers memory, cpu and pids. Otherwise they
// are skipped.
package cgroups_test
