// Package gateways keeps the gateways in the supervisor in step with the profiles on the data volume.
//
// The [Manager] follows profiles that appear and disappear, the state files in which gateways report readiness, and the
// operator's intent (desired_state). It also follows the inputs of a gateway: files whose change restarts a parked gateway.
// It never delays the supervisor's loop. While the volume does not answer, commands still work. As soon as it answers, the
// Manager records the newest command there. An agent can cause messages of a Manager as often as it likes, so the Manager
// limits their number in the container log.
//
// The Manager owns a goroutine that executes its jobs one after the other, and one for the watcher of profiles.
package gateways
