// Package gateways matches the gateways in the supervisor to the profiles on the data volume.
//
// The [Manager] follows profiles that appear and disappear, the state files in which gateways report readiness, and the
// operator's intent (desired_state). It also follows the inputs of a gateway: files whose change restarts a parked gateway. It
// never delays the supervisor's loop. While the volume does not answer, commands still work, and the Manager records the newest
// command later. An agent can cause any number of messages of a Manager, so the Manager limits them in the container log.
//
// The Manager owns a goroutine that executes its jobs one after the other, and one for the watcher of profiles.
package gateways
