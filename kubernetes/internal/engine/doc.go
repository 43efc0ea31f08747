// Package engine runs sandboxes on a Kubernetes cluster: it implements [sandbox.FullEngine] and [sandbox.Cluster].
//
// A container is a pod, or a Sandbox of agents.x-k8s.io/v1beta1 where the cluster has that kind. Its id is random and stays the same when the
// pod is replaced. Everything about a container is in its object, so a new service finds all of it again. The calls of the engine become
// these objects:
//
//   - Create makes a pod with a scheduling gate, or a suspended Sandbox. Start lets it run, and makes the pod of an ended container again.
//   - A mount of a path on a claim of the service's own pod becomes a subPath of that claim. No path of a node is ever mounted.
//   - A volume is a PersistentVolumeClaim.
//   - Exec is one WebSocket to the API server, on which the program inside serves all commands.
//
// The package owns two goroutines for each Exec until its connection ends, and the goroutine of [Engine.Watch].
package engine
