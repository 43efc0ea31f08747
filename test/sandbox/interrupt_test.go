package sandbox_test

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// TestInterruptedRun interrupts docker run at random moments. No container that never started may
// remain.
func TestInterruptedRun(t *testing.T) {
	inEachSetup(t, func(t *testing.T, p *installation) {
		service := strings.HasSuffix(t.Name(), "/service")
		polite := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGINT} // The docker command must behave the same with and without a service.
		if !service {
			polite = []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGTERM}
		}
		for i, delay := range []time.Duration{0, 100 * time.Millisecond, 350 * time.Millisecond} {
			for _, signal := range []syscall.Signal{polite[i], syscall.SIGKILL} {
				name := fmt.Sprintf("hermes-%s-%d-%d", p.profile, i, signal)
				args := append([]string{"run", "-d", "--init", "--name", name, "--network=none"}, p.labels("default")...)
				cmd := exec.Command(p.docker(), append(args, image(), "sleep", "infinity")...)
				cmd.Env = append(cleanEnv(), p.env...)
				setUser(cmd, p.uid)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(delay) // the signal can come at any moment
				_ = cmd.Process.Signal(signal)
				_ = cmd.Wait()
				state := func() string {
					return strings.TrimSpace(docker("ps", "-a", "--filter", "name=^/?"+name+"$", "--format", "{{.State}}").out)
				}
				if signal == syscall.SIGKILL && !service {
					// The next sweep must find the container by its labels.
					testkit.Until(t, "the sweep finds what is left", func() bool {
						p.sandbox("reap", "--max-age", "1ms")
						return state() != "created"
					})
				}
				testkit.Until(t, "nothing is left half made", func() bool { s := state(); return s == "" || s == "running" })
				if state() == "running" {
					if r := p.call("exec", name, "true"); r.code != 0 {
						t.Errorf("%v after %v: it runs, and a command in it says %v", signal, delay, r)
					}
				}
				p.call("rm", "-f", name)
				testkit.Until(t, "it is removed", func() bool { return state() == "" })
			}
		}
		testkit.Until(t, "nothing is left", func() bool {
			if !service { // The engine may create a container although the client has ended.
				p.sandbox("reap", "--max-age", "1ms")
			}
			return len(p.containers()) == 0
		})
	})
}
