// Package controller decides which host runs which profile in the pools of a cluster, and manages the StatefulSets of these
// pools.
//
// Package placement makes the decisions. This package reads the objects for them from the cluster and carries the decisions
// out. Each write is a compare-and-swap on the version that was read. The controller never starts or stops a gateway itself.
//
// [Run] owns all goroutines and returns when they have ended. These are the goroutines of controller-runtime, one that checks
// whether the nodes answer, and one for each of its connections.
package controller
