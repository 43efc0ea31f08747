// Package cgroups_test runs whole containers on control groups of version 2, as Kubernetes and Podman give them. hinit is PID 1 of namespaces.
// It has its own control group, which it may divide or not. Every gateway is an example agent.
//
//	make test-kernel
//
// The tests need root, and a hierarchy of version 2 with the controllers memory, cpu and pids. Elsewhere they are skipped.
package cgroups_test
