package probe

import (
	"bufio"
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

	"hinit/internal/config"
	"hinit/internal/testkit"
)

const serveVar = "PROBE_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(serveVar) != "" {
		serveHealth()
	}
	testkit.IsolateProcess()
	os.Exit(m.Run())
}

// serveHealth answers every request until its standard input ends.
func serveHealth() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		os.Exit(1)
	}
	fmt.Println("http://" + l.Addr().String() + "/health")
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"status":"ok"}`) })) //nolint:gosec // this server lives only for a benchmark
	os.Exit(1)
}

// startServerProcess starts the web server in another process and returns its address.
func startServerProcess(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveVar+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(url)
}

func ownCPUTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHTTPLook compares an http check with a request of net/http's client without kept connections, in turns. It prints
// both in microseconds of processor time, and their ratio, which depends less on the load of the machine.
func BenchmarkHTTPLook(b *testing.B) {
	url := startServerProcess(b)
	c := config.Check{Type: config.CheckHTTP, Timeout: time.Second, HTTP: config.HTTPCheck{URL: url, Status: "200-399"}}
	h, err := newHTTPCheck(c, func(s string) string { return s })
	if err != nil {
		b.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	var own, others time.Duration
	const turn = 20
	for n := 0; n < b.N; n += turn {
		begin := ownCPUTime()
		for range turn {
			if good, answer := h.check(time.Now().Add(c.Timeout)); !good {
				b.Fatal(answer)
			}
		}
		between := ownCPUTime()
		for range turn {
			reply, err := client.Get(url)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, reply.Body)
			_ = reply.Body.Close()
		}
		own, others = own+between-begin, others+ownCPUTime()-between
	}
	looks := float64((b.N + turn - 1) / turn * turn)
	b.ReportMetric(float64(own.Microseconds())/looks, "cpu-µs/look")
	b.ReportMetric(float64(others.Microseconds())/looks, "cpu-µs/client")
	b.ReportMetric(float64(own)/float64(others), "of-client")
}
