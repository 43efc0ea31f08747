// Package early starts to handle signals as early as a Go program can.
//
// If a process gets SIGTERM before it has a handler, the Go runtime ends it with exit code 2 and without a message. Go
// initializes packages in the order of their imports and then of their paths. This package imports almost nothing, so it is
// initialized before most others and long before main. At that moment, half of the time between hinit's execution and main is
// still ahead.
//
// The first steps of the runtime are not covered. Until the runtime has installed its handlers, the kernel does not deliver the
// signal to process 1 of a container. After that, and until the runtime and the packages os and syscall are initialized, the
// signal kills the process.
//
// The package has one channel for the process, and owns no goroutine.
package early

import (
	"os"
	"os/signal"
	"syscall"
)

// Shutdown is SIGRTMIN+3, which systemd takes as a request to shut down. Container managers for systemd send it.
const Shutdown = syscall.Signal(37)

// InitSignals returns the signals that the init acts on.
func InitSignals() []os.Signal {
	return []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
		syscall.SIGPWR, Shutdown,
	}
}

var orders = listen(os.Args)

// Orders returns the channel that receives the signals of [InitSignals].
func Orders() chan os.Signal {
	if orders == nil {
		orders = notify()
	}
	return orders
}

// listen starts to handle the signals if the process was started as an init. In any other process, such as a command, the signals
// keep their default effect and end the process.
func listen(argv []string) chan os.Signal {
	if len(argv) > 0 && (names(argv[0], "init") || names(argv[0], "tini")) || len(argv) > 1 && (argv[1] == "init" || argv[1] == "run") && names(argv[0], "hinit") {
		return notify()
	}
	return nil
}

func notify() chan os.Signal {
	c := make(chan os.Signal, 16)
	signal.Notify(c, InitSignals()...)
	return c
}

// names reports whether name is the last component of a path.
func names(path, name string) bool {
	dir := len(path) - len(name)
	return dir >= 0 && path[dir:] == name && (dir == 0 || path[dir-1] == '/')
}
