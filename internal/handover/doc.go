// Package handover replaces the program of this process by another while everything it holds goes on: its process id, its
// children, the pipes and sockets that are handed over, and the signals that come meanwhile.
//
// What the old image knows travels in a sealed memory file ([Memory], memfd_create(2)): JSON, so that a newer and an older
// hinit understand each other; keys that the reader does not know are ignored, keys that are missing are zero. The new image
// finds it by an environment variable ([Var]), which no child gets to see.
//
// [Codec] turns Go values into that JSON, unexported fields too, so that a field somebody adds to a state can't be
// forgotten. Times keep their place on the monotonic clock, so that a step of the wall clock moves no deadline.
//
// The package owns no goroutine.
package handover
