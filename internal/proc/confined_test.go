package proc

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const connectVar = "PROC_TEST_CONNECT"

// If another process has taken the PID of a dead peer, the peer must still count as gone. Otherwise an isolated agent could use
// the connection of a dead child to pose as that process.
func TestAPeerThatHasEndedIsGone(t *testing.T) {
	if path := os.Getenv(connectVar); path != "" {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Read(make([]byte, 1))
		return
	}
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	child := exec.Command(os.Args[0], "-test.run=^TestAPeerThatHasEndedIsGone$")
	child.Env = append(os.Environ(), connectVar+"="+path)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if PeerExited(conn) {
		t.Error("a peer that lives is gone")
	}
	if _, err := conn.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if !PeerExited(conn) {
		t.Error("a peer that has ended is not gone")
	}
	if a, _ := net.Pipe(); !PeerExited(a) {
		t.Error("a peer that the kernel does not name is there")
	}
}
