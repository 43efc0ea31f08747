// Package gateways keeps the profiles on the data volume and the gateways in the supervisor consistent.
//
// The [Manager] follows profiles that appear and disappear, readiness in state files, the operator's intent (desired_state), and
// the inputs of parked gateways. It promises that the volume and the supervisor agree with the newest order as soon as the volume
// answers. It never delays the supervisor's loop.
//
// It owns a goroutine for its jobs, and one for the watcher of profiles.
package gateways
