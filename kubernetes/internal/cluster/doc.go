// Package cluster runs a real Kubernetes cluster for tests: etcd, API server, controllers, scheduler, and nodes with
// containerd and kubelet.
//
// [Build] builds the programs once into a cache. [Main] runs the tests of a package in new PID, mount and network namespaces.
// When the process that started the cluster ends, even by SIGKILL, the kernel kills all processes of the cluster and removes
// its mounts, network links and addresses. Only empty control groups may remain, and the next run removes them. The package
// owns no goroutine that outlives the tests.
package cluster
