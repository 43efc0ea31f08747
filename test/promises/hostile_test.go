package promises_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
)

// TestHostileClients opens a thousand idle connections and sends garbage. Other clients must be
// served, and PID 1's memory and descriptors must stay bounded.
func TestHostileClients(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	names := b.profiles(20, sleeper)
	b.boot()
	b.startAndAwait(names...)
	b.requestStatusConcurrently(50) // PID 1 now has its working memory for clients.
	before := b.usage()
	garbage := []string{
		"\x00\xff\x16\x03\x01 nonsense\r\n\r\n", strings.Repeat("A", 1<<20), "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10),
		"POST /v1/services/p000/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + strings.Repeat("{", 200<<10),
		"POST /v1/services/p000/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{", "GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n",
		strings.Repeat("GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", 100), "POST /v1/rescan HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
		"GET /v1/status?name=" + strings.Repeat("%00", 1000) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/services/..%2f..%2fetc/start HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
	}
	var most usage
	for range shortOrFull(1, 10) {
		clients := b.connect(shortOrFull(300, 1000))
		for i := range shortOrFull(100, 500) {
			if c := b.sendRaw(garbage[i%len(garbage)]); c != nil {
				clients = append(clients, c)
			}
			sheet.add("bad inputs", 1)
		}
		sheet.add("hostile clients", len(clients))
		now := b.usage()
		most.residentBytes, most.files, most.threads = max(most.residentBytes, now.residentBytes), max(most.files, now.files), max(most.threads, now.threads)
		closeAll(clients)
		// Hostile clients may use up root's connections, so the test may have to wait.
		within(t, patience, func() error { return b.checkState("p000", client.StateUp)() })
		b.check(b.sendCommand("restart", "p001"), b.checkUnharmed(names))
	}
	const files, memory, threads = 600, 64 << 10, 128
	if most.files > files || most.residentBytes > memory || most.threads > threads {
		t.Errorf("at its worst PID 1 had %d descriptors, %d KiB and %d threads", most.files, most.residentBytes, most.threads)
	}
	within(t, patience, func() error {
		if now := b.usage(); now.files > before.files+3 || now.residentBytes > before.residentBytes+16<<10 {
			return fmt.Errorf("PID 1 had %+v before, and has %+v after", before, now)
		}
		return nil
	})
	sheet.set("worst memory", fmt.Sprintf("%d MiB", (most.residentBytes+1023)>>10))
	sheet.set("worst files", fmt.Sprint(most.files))
	t.Logf("before %+v, at the worst %+v, after %+v", before, most, b.usage())
}

// checkUnharmed waits until all the services are up.
func (b *testContainer) checkUnharmed(names []string) error {
	for _, name := range names {
		if err := poll(patience, b.checkState(name, client.StateUp)); err != nil {
			return err
		}
	}
	return nil
}

// TestTheAgentsClientsDoNotKeepRootOut checks that root is answered while the agent holds many
// connections open.
func TestTheAgentsClientsDoNotKeepRootOut(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	b.profile("a", sleeper)
	b.boot()
	self, err := os.Executable()
	b.check(err)
	copied := b.path("hog") // The agent's user can execute this copy of the binary.
	text, err := os.ReadFile(self)
	b.check(err, testkit.WriteProgram(copied, text))
	hog := exec.Command(copied)
	hog.Env = []string{roleVar + "=hog", "SOCKET=" + b.client.Socket()}
	hog.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: agentID, Gid: agentID}, Pdeathsig: syscall.SIGKILL}
	hog.Stderr = os.Stderr
	out, err := hog.StdoutPipe()
	b.check(err, hog.Start())
	defer func() {
		_ = hog.Process.Kill()
		_ = hog.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "full\n" {
		t.Fatalf("the hog says %q, %v", line, err)
	}
	begin := time.Now()
	b.status()
	b.check(b.sendCommand("start", "a"), b.sendCommand("stop", "a"))
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("root was answered after %v", took)
	}
}
