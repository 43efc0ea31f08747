// Package early handles signals as early as a Go program can.
//
// If a process gets SIGTERM before it has a handler, the Go runtime ends it with exit code 2 and without a message. Go
// initializes packages after their imports, and in the order of their paths. This package imports almost nothing, so Go
// initializes it before most others and long before main. By then, half of the time from execve to main has passed.
//
// The first steps of the runtime are not covered. Before the runtime has handlers, the kernel delivers no such signal to
// process 1 of a container. From then on, until the runtime and the packages os and syscall are initialized, a signal kills the
// process.
//
// The package has one channel for the process, and owns no goroutine.
package early

import (
	"os"
	"os/signal"
	"syscall"
)

// ShutdownSignal is SIGRTMIN+3, which asks systemd to shut down. Container managers that are made for systemd send it.
const ShutdownSignal = syscall.Signal(37)

// InitSignals returns the signals on which the init acts.
func InitSignals() []os.Signal {
	return []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
		syscall.SIGPWR, ShutdownSignal,
	}
}

var initSignals = listenIfInit(os.Args)

// InitSignalChannel returns the channel with the signals of [InitSignals].
func InitSignalChannel() chan os.Signal {
	if initSignals == nil {
		initSignals = notifyAll()
	}
	return initSignals
}

// listenIfInit handles the signals if argv starts this process as an init. In any other process, the signals keep their default
// effect.
func listenIfInit(argv []string) chan os.Signal {
	if len(argv) > 0 && (isNamed(argv[0], "init") || isNamed(argv[0], "tini")) || len(argv) > 1 && (argv[1] == "init" || argv[1] == "run") && isNamed(argv[0], "hinit") {
		return notifyAll()
	}
	return nil
}

func notifyAll() chan os.Signal {
	c := make(chan os.Signal, 16)
	signal.Notify(c, InitSignals()...)
	return c
}

// isNamed reports whether name is the last element of a path.
func isNamed(path, name string) bool {
	dir := len(path) - len(name)
	return dir >= 0 && path[dir:] == name && (dir == 0 || path[dir-1] == '/')
}
