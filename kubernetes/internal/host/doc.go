// Package host carries out, in one pod, what the objects of a fleet say about its profiles. It is a client of the hinit of the pod.
//
// It watches the profiles that are its own, and those that are about to be. A step that starts, gives or makes something follows a fresh
// read, see package placement. While the API server is away everything goes on as it is. Nothing listens, except while a profile is given to
// another host. [Run] owns its goroutines: watches, a few workers, a heartbeat. All end with it.
package host
