package main

import (
	"strconv"
	"syscall"
)

// loopPeer is a loop that only starts the services. No supervisor can cost less.
type loopPeer struct{ self string }

const loopName = "bare loop"

func (loopPeer) name() string               { return loopName }
func (loopPeer) programs() []string         { return nil }
func (loopPeer) version() string            { return "" }
func (loopPeer) prepare(*site) error        { return nil }
func (loopPeer) stopSignal() syscall.Signal { return syscall.SIGTERM }

func (p loopPeer) command(s *site) (argv, env []string) {
	return append([]string{p.self, roleLoop, strconv.Itoa(len(s.services))}, s.command...), nil
}
