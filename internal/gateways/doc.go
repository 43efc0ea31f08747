// Package gateways keeps the profiles on the data volume and their gateways in the supervisor consistent.
//
// The [Manager] follows profiles that appear and disappear, and the state files in which gateways report readiness. It also
// follows the operator's intent (desired_state), and a gateway's inputs: the files whose change restarts a parked gateway. As
// soon as the volume answers, it brings the volume and the supervisor into line with the newest order. The Manager never delays
// the supervisor's loop.
//
// The Manager owns a goroutine that executes its jobs one after the other, and one for the watcher of profiles.
package gateways
