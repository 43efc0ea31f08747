// Command hinit-sandbox-kubernetes is hinit-sandbox for a Kubernetes cluster: it has the same command lines, service and docker
// emulation. hinit-sandbox executes it if HINIT_SANDBOX_ENGINE is kubernetes. Two more verbs run in the pods of sandboxes:
//
//	hinit-sandbox-kubernetes install DIR  copy the helper, the program that starts the commands in a sandbox, to DIR
//	hinit-sandbox-kubernetes users        exit with 0 if this pod has its own user namespace
//
// Packages program and engine own its goroutines.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"hinit/kubernetes/internal/engine"
	"hinit/sandbox"
	"hinit/sandbox/gate"
	"hinit/sandbox/program"
)

func main() { os.Exit(run(os.Args)) }

func run(argv []string) int {
	klog.SetLogger(logr.Discard()) // drop the log of client-go, because the returned errors say what the user must know
	switch {
	case len(argv) == 3 && argv[1] == "install":
		if err := install(argv[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	case len(argv) == 2 && argv[1] == "users":
		if !engine.Mapped() {
			return engine.CodeUnmapped
		}
		return 0
	}
	// An agent may run as the same user. Keep it from reading the token in this program's memory.
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // ignore the error: prctl can't fail for the calling process
	return program.Program{Engine: open}.Run(argv)
}

func open(string) (sandbox.FullEngine, error) {
	s, err := engine.ReadSettings(os.Getenv)
	if err != nil {
		return nil, err
	}
	return engine.New(s, func(format string, args ...any) { fmt.Fprintf(os.Stderr, "[hinit-sandbox] "+format+"\n", args...) })
}

// install copies this program, which is also the helper, into dir.
func install(dir string) error {
	path, err := sandbox.FindHelper("")
	if err != nil {
		return fmt.Errorf("cannot install the program inside: %w", err)
	}
	program, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, gate.ProgramName), program, 0o555)
	}
	if err != nil {
		return fmt.Errorf("cannot install the program inside: %w", err)
	}
	return nil
}
