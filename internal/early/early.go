// Package early listens to signals from the first moment in which a program of Go can.
//
// The Go runtime ends a process that gets SIGTERM before it has a handler, with code 2 and without a message. Packages are
// initialized in the order of their imports and then of their paths. This package imports almost nothing, so it is initialized
// before most others and long before main. Half of the time from hinit's execution to main passes there. The first steps of the
// runtime are out of reach. Process 1 of a container does not get the signal at all until the runtime has installed its handlers.
// From then on the signal ends it, until the runtime and packages os and syscall are initialized.
//
// It has one channel for the process, and owns no goroutine.
package early

import (
	"os"
	"os/signal"
	"syscall"
)

// Shutdown is SIGRTMIN+3, by which container managers made for systemd ask for a shutdown.
const Shutdown = syscall.Signal(37)

// Meaningful are the signals that mean something to the init.
func Meaningful() []os.Signal {
	return []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
		syscall.SIGPWR, Shutdown,
	}
}

var orders = listen(os.Args)

// Orders is the channel on which the signals arrive that mean something.
func Orders() chan os.Signal {
	if orders == nil {
		orders = notify()
	}
	return orders
}

// listen listens in a process that is called as the init is. Others, such as commands, are to be ended by a signal.
func listen(argv []string) chan os.Signal {
	if len(argv) > 0 && (names(argv[0], "init") || names(argv[0], "tini")) || len(argv) > 1 && (argv[1] == "init" || argv[1] == "run") && names(argv[0], "hinit") {
		return notify()
	}
	return nil
}

func notify() chan os.Signal {
	c := make(chan os.Signal, 16)
	signal.Notify(c, Meaningful()...)
	return c
}

// names says whether a path ends with a name.
func names(path, name string) bool {
	dir := len(path) - len(name)
	return dir >= 0 && path[dir:] == name && (dir == 0 || path[dir-1] == '/')
}
