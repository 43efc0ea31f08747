// Package host runs in each pod of an agent pool. It makes the profiles in that pod match their AgentProfile objects in the
// Kubernetes API, as a client of the pod's hinit.
//
// It watches the profiles that are placed on this host, and the profiles that move to it. Before a step that starts or stops
// a gateway, or moves or deletes data, the host reads the object again from the API server, see package placement. Only a new
// profile is created without such a read. No gateway runs from the new profile before a write has confirmed that the object
// is still as the watch has shown it. If it is not, the home is retained, even with onDelete: Delete. While the API server
// can't be reached, the gateways keep running as they are. The package listens on the network only while it offers a profile
// to another host.
//
// [Run] owns all goroutines: the watches, a few workers and a heartbeat. They end before Run returns.
package host
