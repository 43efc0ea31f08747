// Command hinit-lease-kubernetes holds the Lease of a data volume that several pods mount. hinit starts it
// (HINIT_LEASE=kubernetes) and serves the volume only while this program reports that it holds the Lease.
//
// On SIGTERM it exits without releasing the Lease, because gateways may still be running. The Lease then stays held until it
// expires. On SIGPWR it releases the Lease and exits. hinit sends this signal when all other processes in the container have
// ended. The command owns one goroutine, which runs the election.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"hinit/kubernetes/internal/lease"
)

const (
	exitFailed = 1
	exitConfig = 78 // EX_CONFIG in sysexits.h; hinit does not start the program again after it
)

func main() { os.Exit(run()) }

func run() int {
	// An agent may run as the same user. Keep it from sending messages in this program's name, and from reading the token in
	// its memory.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // ignore the error: prctl can't fail for the calling process
	klog.SetLogger(logr.Discard())                   // drop the log of client-go, because package lease reports what the operator must know
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	end, last := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	signal.Notify(last, unix.SIGPWR)
	s, err := lease.ReadSettings(os.Getenv)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			say("%s", strings.TrimSpace(line))
		}
		return exitConfig
	}
	over := make(chan error, 1)
	go func() { over <- lease.Run(ctx, s, say) }()
	for {
		select {
		case <-end:
			return 0
		case <-last:
			cancel()
		case err := <-over:
			if err != nil {
				say("%v", err)
				return exitFailed
			}
			return 0
		}
	}
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "hinit-lease-kubernetes: "+format+"\n", args...)
}
