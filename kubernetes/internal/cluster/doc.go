// Package cluster runs a real Kubernetes for tests: etcd, API server, controllers, scheduler, and nodes with containerd and kubelet.
//
// [Build] builds the programs once into a cache. [Main] runs the tests of a package in a PID, mount and network namespace of their own. The kernel ends all processes of the cluster with the process that began it, also after SIGKILL, and no mount, link or address
// is left. Only empty control groups remain then; the next run removes them. The package owns no goroutine that outlives the tests.
package cluster
