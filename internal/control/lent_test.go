package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/supervisor"
)

// passConnToParent runs in a child process: it connects to the socket, passes the connection to its parent, and ends.
func passConnToParent(socket string) {
	for began := time.Now(); time.Since(began) < time.Minute; <-time.After(time.Millisecond) {
		c, err := net.Dial("unix", socket)
		if err != nil {
			continue
		}
		f, err := c.(*net.UnixConn).File()
		if err == nil {
			err = unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0)
		}
		if err != nil {
			fmt.Println(err)
		}
		return
	}
}

// noticeBackend is a Backend that records the services of notices.
type noticeBackend struct {
	*fakeBackend
	notices chan string
}

func (c noticeBackend) Do(_ context.Context, e supervisor.Event) error {
	if r, is := e.(supervisor.Remark); is {
		c.notices <- r.Service
	}
	return nil
}

// Notices on a connection whose process has ended must be refused. Otherwise an agent could keep such a connection until the
// main process of another service gets the same PID.
func TestAConnectionOfAProcessThatHasEndedSpeaksForNoService(t *testing.T) {
	core := noticeBackend{newFakeBackend(), make(chan string, 1)}
	s := serve(t, core, Options{})
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	child := exec.Command(os.Args[0])
	child.Env, child.ExtraFiles = append(os.Environ(), "CONTROL_TEST_LEND="+s.socket), []*os.File{theirs}
	out, err := child.CombinedOutput()
	theirs.Close()
	oob := make([]byte, unix.CmsgSpace(4))
	if err == nil {
		_, _, _, _, err = unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	}
	messages, bad := unix.ParseSocketControlMessage(oob)
	if err = errors.Join(err, bad); err != nil || len(messages) == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(os.NewFile(uintptr(fds[0]), "connection"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD); errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("this kernel does not tell whether a peer has ended")
	}
	core.setServices(newGateway("other", supervisor.Up, func(v *supervisor.Service) { v.PID = child.Process.Pid }))
	answers := bufio.NewReader(conn)
	post := func(path, body string) int {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: hinit\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	if code := post("/v1/notices", `{"key":"k"}`); code != http.StatusNoContent {
		t.Fatalf("a notice: %d", code)
	}
	if service := <-core.notices; service != "" {
		t.Errorf("the notice is one of %s", service)
	}
	by := authorOf(route{}, peer{pid: int32(os.Getpid()), exited: func() bool { return true }})
	if by.Program != "" || by.Origin != client.OriginAPI {
		t.Errorf("an order of the ended process is one of %+v", by)
	}
	if code := post("/v1/services/gateway-other/say", `{"text":"mine"}`); code != http.StatusForbidden {
		t.Errorf("its status text: %d", code)
	}
	if self := strings.TrimSpace(authorOf(route{}, peer{pid: int32(os.Getpid())}).Program); self == "" {
		t.Error("this process has no name")
	}
}
