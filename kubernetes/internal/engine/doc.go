// Package engine runs sandboxes on a Kubernetes cluster: it implements [sandbox.FullEngine] and [sandbox.Cluster].
//
// A container is a pod, or a Sandbox of agents.x-k8s.io/v1beta1 if the cluster has that kind. The id of a container is random and
// stays the same when its pod is replaced. The objects hold all state of a container, so a restarted service finds its containers
// again. The calls of the engine are implemented as follows:
//
//   - Create creates a pod with a scheduling gate, or a suspended Sandbox. Start removes the gate or resumes the Sandbox. If the
//     pod has ended, Start creates it again.
//   - A bind mount of a path on a PersistentVolumeClaim of the service's own pod becomes a subPath of that claim. A path of a node
//     is never mounted.
//   - A volume is a PersistentVolumeClaim.
//   - Exec is one WebSocket to the API server. It runs the helper, the program in a sandbox that serves all commands.
//
// The package owns two goroutines for each Exec until its connection ends, and the goroutine of [Engine.Watch].
package engine
