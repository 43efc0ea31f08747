// Package controller decides for the pools of a cluster which host has which profile, and keeps their StatefulSets.
//
// Package placement has the decisions. This package reads the cluster for them and carries them out. Each write is a compare-and-swap of the
// version that was read. The controller never starts or stops a gateway. [Run] owns the goroutines of controller-runtime, one that asks the nodes
// and one for each of its connections, and returns when all have ended.
package controller
