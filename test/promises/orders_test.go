package promises_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// Numbers from linux/fs.h.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// useFreezableVolume gives a container its own volume, which can be frozen like with fsfreeze(8). Writers
// block until the thaw.
func (b *testContainer) useFreezableVolume() (freeze, thaw func()) {
	b.t.Helper()
	image := b.path("image")
	b.check(os.WriteFile(image, nil, 0o600), os.Truncate(image, 32<<20))
	for _, argv := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, b.home}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			b.t.Skipf("this machine has no file system that can be frozen: %s: %v, %s", argv[0], err, out)
		}
	}
	dir, err := os.Open(b.home)
	b.check(err)
	frozen := false
	call := func(request uintptr) {
		b.t.Helper()
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), request, 0); errno != 0 {
			b.t.Errorf("ioctl %#x: %v", request, errno)
		}
	}
	freeze = func() { call(fiFreeze); frozen = true }
	thaw = func() {
		if frozen {
			call(fiThaw)
			frozen = false
		}
	}
	b.t.Cleanup(func() {
		thaw()
		b.kill()
		_ = dir.Close() // Close fails if the name is a directory.
		_ = unix.Unmount(b.home, unix.MNT_DETACH)
	})
	b.check(os.Mkdir(filepath.Join(b.home, "profiles"), 0o755), chownTree(b.home, b.uid))
	return freeze, thaw
}

// checkAgreement fails unless the disk, the supervisor and the gateway agree on a profile's desired state.
// want is "" if the last command is unknown.
func (b *testContainer) checkAgreement(profile, want string) error {
	s, err := b.service(profile)
	if err != nil {
		return err
	}
	disk := b.desired(profile)
	switch {
	case want != "" && disk != want:
		return fmt.Errorf("the disk says %q, and the last order wanted %s", disk, want)
	case disk == "running" && s.Want == "up" && s.State == client.StateUp, disk == "stopped" && s.Want == "down" && s.State == client.StateDown:
		return nil
	}
	return fmt.Errorf("the disk says %q, and the gateway is %s and wanted %s", disk, s.State, s.Want)
}

// TestOrdersAroundAFrozenVolume checks that the disk and the gateway agree after a freeze, in spite
// of clients that gave up.
func TestOrdersAroundAFrozenVolume(t *testing.T) {
	parallelMeasurement(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	freeze, thaw := b.useFreezableVolume()
	b.profile("a", sleeper)
	b.boot()
	b.startAndAwait("a")
	t.Logf("seed %d", *seed)
	r := rand.New(rand.NewPCG(*seed, 12))
	var worst time.Duration
	for range shortOrFull(2, 60) {
		freeze()
		want := b.desired("a")
		for range 1 + r.IntN(3) {
			verb := []string{"start", "stop", "restart"}[r.IntN(3)]
			// A timeout means that hinit has accepted the command.
			err := b.command(verb, "a", client.WaitOptions{Wait: r.IntN(2) == 0, Timeout: time.Duration(30+r.IntN(300)) * time.Millisecond})
			if clientErr := (*client.Error)(nil); !errors.As(err, &clientErr) || clientErr.Kind != client.KindTimeout {
				t.Errorf("the answer to a %s on a frozen volume is %v", verb, err)
			}
			want = "running"
			if verb == "stop" {
				want = "stopped"
			}
			sheet.add("orders in a freeze", 1)
		}
		if r.IntN(2) == 0 { // Another client hangs up; hinit may have read its request or not.
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(20))*time.Millisecond)
			_, _ = b.client.Stop(ctx, "a", client.WaitOptions{Wait: true})
			cancel()
			want = ""
			sheet.add("orders in a freeze", 1)
		}
		thaw()
		begin := time.Now()
		within(t, patience, func() error { return b.checkAgreement("a", want) })
		worst = max(worst, time.Since(begin))
		sheet.add("freezes", 1)
		b.check(b.commandAndAwait("start", "a"))
	}
	// A re-execution must be refused during the freeze, because execve(2) would block on the thread
	// that waits for the volume.
	b.check(b.commandAndAwait("stop", "a"))
	freeze()
	if err := b.command("start", "a", client.WaitOptions{Wait: true, Timeout: 100 * time.Millisecond}); err == nil {
		t.Error("a start on a frozen volume is said to be done")
	}
	if _, err := b.client.Reexec(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "a disk does not answer") {
		t.Errorf("a change of the image on a frozen volume: %v", err)
	}
	b.status()
	thaw()
	within(t, patience, func() error { return b.checkAgreement("a", "running") })
	sheet.set("worst agreement", worst.Round(time.Millisecond).String())
	t.Logf("disk and gateway agreed %v after the thaw at the latest", worst)
}

// TestEveryRouteAnswersOnAFrozenVolume checks that every API route answers in time, and that a stop
// sends its signal.
func TestEveryRouteAnswersOnAFrozenVolume(t *testing.T) {
	parallelMeasurement(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	freeze, thaw := b.useFreezableVolume()
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		b.profile(name, sleeper)
	}
	b.boot()
	b.startAndAwait(names[:3]...)
	freeze()
	begin := time.Now()
	var worst time.Duration
	long := time.Duration(shortOrFull(600, 2000)) * time.Millisecond
	for _, tt := range []struct {
		method, path, body string
		limit              time.Duration // Maximum wait of the request; 0 if it waits for nothing.
		answer             string
		down               string // Gateway that must have no process afterwards.
	}{
		{"POST", "/v1/services/a/stop", fmt.Sprintf(`{"timeout_ms": %d}`, long.Milliseconds()), long, "the stop is under way: gateway-a got TERM; it is not recorded yet, because the data volume has not answered yet", "a"},
		{"POST", "/v1/services/b/stop", `{"timeout_ms": 300, "wait": false}`, 300 * time.Millisecond, "the stop is under way: gateway-b got TERM; it is not recorded yet", "b"},
		{"POST", "/v1/services/c/restart", `{"timeout_ms": 300}`, 300 * time.Millisecond, "the restart waits, because the data volume has not answered yet; hinit records it and carries it out when the volume does", ""},
		{"POST", "/v1/services/d/start", `{"timeout_ms": 300}`, 300 * time.Millisecond, "the start waits, because the data volume has not answered yet", ""},
		{"POST", "/v1/services/nosuch/start", `{"timeout_ms": 300}`, 300 * time.Millisecond, "nosuch", ""},
		{"GET", "/v1/status", "", 0, `"gateway-a"`, ""},
		{"GET", "/v1/services/a", "", 0, `"state":"down"`, ""},
		{"GET", "/v1/events?last=3", "", 0, `"seq"`, ""},
		{"GET", "/v1/config", "", 0, `"entries"`, ""},
		{"GET", "/v1/health", "", 0, `"ok":true`, ""},
		{"POST", "/v1/rescan", "", 30 * time.Second, "", ""},
		{"POST", "/v1/examine", "", 9 * time.Second, "can be read, but a write has taken longer than 8s", ""},
		{"POST", "/v1/reload", "", 30 * time.Second, "", ""},
		{"GET", "/v1/slots", "", 0, `"slots"`, ""},
	} {
		asked := time.Now()
		body, err := b.apiRequest(tt.method, tt.path, tt.body)
		took := time.Since(asked)
		if err != nil || !strings.Contains(body, tt.answer) {
			t.Errorf("%s %s: %v, %s; without %q", tt.method, tt.path, err, body, tt.answer)
		}
		if tt.down != "" {
			within(t, patience, func() error {
				if left := b.processesOf("gateway-" + tt.down); len(left) > 0 {
					return fmt.Errorf("of %s these are alive: %+v", tt.down, left)
				}
				return nil
			})
		}
		worst = max(worst, took-tt.limit)
		sheet.add("frozen answers", 1)
	}
	if *full && worst > 100*time.Millisecond { // In the full form no other test runs, so every answer must come in time.
		t.Errorf("an answer came %v after its time", worst)
	}
	// The command line must report the same, and end.
	out, err := b.enter("env", "HINIT_RUNTIME_DIR="+b.path("run"), built.shipped, "stop", "--timeout", long.String(), "c")
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "gateway-c got TERM; it is not recorded yet") {
		t.Errorf("hinit stop --timeout %v: %v\n%s", long, err, out)
	}
	// The doctor must answer too, without writing to the volume.
	messages := make(chan string, 1)
	go func() {
		out, err := b.enter("env", "HINIT_RUNTIME_DIR="+b.path("run"), "HINIT_CONFIG="+b.path("hinit.yaml"), "HERMES_HOME="+b.home, built.shipped, "doctor")
		messages <- fmt.Sprintf("%s%v", out, err)
	}()
	select {
	case text := <-messages:
		if !strings.Contains(text, "can be read, but a write has taken longer than 8s") || !strings.HasSuffix(text, "exit status 1") {
			t.Errorf("hinit doctor says\n%s", text)
		}
	case <-time.After(patience):
		t.Error("hinit doctor does not end on a frozen volume")
	}
	thaw()
	for _, name := range names[:3] {
		within(t, patience, func() error { return b.checkAgreement(name, "stopped") })
	}
	within(t, patience, func() error { return b.checkAgreement("d", "running") })
	sheet.set("worst answer", worst.Round(time.Millisecond).String())
	t.Logf("frozen for %v; the latest answer came %v after its time", time.Since(begin), worst)
}

// apiRequest sends a request to the control API, and returns the answer's body.
func (b *testContainer) apiRequest(method, path, body string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://hinit"+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", b.client.Socket())
	}}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(answer.Body)
	return string(text), errors.Join(err, answer.Body.Close())
}
