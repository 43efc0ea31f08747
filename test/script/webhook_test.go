package script_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"hinit/internal/testkit"
)

// receiver is a webhook server. While it is down, it closes connections without an answer.
type receiver struct {
	net.Listener
	isDown atomic.Bool

	mu       sync.Mutex
	received []string // Services in the order of their first request.
	total    int
}

func (r *receiver) Accept() (net.Conn, error) {
	for {
		c, err := r.Listener.Accept()
		if err != nil || !r.isDown.Load() {
			return c, err
		}
		_ = c.Close()
	}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var m struct{ Event, Service string }
	body, err := io.ReadAll(q.Body)
	if err != nil || json.Unmarshal(body, &m) != nil || m.Event != "ready" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	if !slices.Contains(r.received, m.Service) {
		r.received = append(r.received, m.Service)
	}
}

func (r *receiver) services() ([]string, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.received), r.total
}

// TestActionsSurviveKill9 fills a webhook's queue and kills hinit-actions. Queued actions must be
// delivered, and the log must name dropped ones.
func TestActionsSurviveKill9(t *testing.T) {
	testkit.SkipIfShort(t)
	t.Parallel()
	for _, services := range []int{100, 106} { // One target holds at most 100 waiting events, so the second round overflows.
		t.Run(fmt.Sprint(services), func(t *testing.T) { actionsSurviveKill9(t, services) })
	}
}

func actionsSurviveKill9(t *testing.T, services int) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hook := &receiver{Listener: listener}
	hook.isDown.Store(true)
	server := &http.Server{Handler: hook}
	go func() { _ = server.Serve(hook) }()
	defer server.Close()

	dir, err := os.MkdirTemp(built.root, "hook") //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("on: {ready: {webhook: \"http://%s/hook\"}}\nrestart: {initial: 20ms, max: 20ms}\nservices:\n", listener.Addr())
	for n := range services {
		text += fmt.Sprintf("  w%03d: {command: [sleep, \"1033\"]}\n", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "hinit.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HINIT_") || strings.HasPrefix(v, "HERMES_") })
	env = append(env, "PATH="+built.bin+":"+os.Getenv("PATH"), "HINIT_RUNTIME_DIR="+filepath.Join(dir, "run"))
	run := exec.Command(filepath.Join(built.bin, "hinit"), "run", "-c", "hinit.yaml")
	run.Dir, run.Env, run.Stdout, run.Stderr = dir, env, log, log
	run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = run.Process.Signal(syscall.SIGTERM)
		_ = run.Wait()
	}()
	said := func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "said"))
		return string(text)
	}
	helper := func() int { // helper returns the PID of hinit-actions.
		status := exec.Command(filepath.Join(built.bin, "hinit"), "status", "hinit-actions", "--json")
		status.Dir, status.Env = dir, env
		out, _ := status.Output()
		var s struct{ Services []struct{ PID int } }
		if json.Unmarshal(out, &s) != nil || len(s.Services) != 1 {
			return 0
		}
		return s.Services[0].PID
	}
	waiting := func() (names []string) { // waiting returns the queued services in order.
		text, _ := os.ReadFile(filepath.Join(dir, ".hinit-actions.json"))
		var s struct {
			Marks map[string]map[string]string
			Jobs  []struct{ Service string }
		}
		if json.Unmarshal(text, &s) != nil || len(s.Marks) < services {
			return nil
		}
		for _, j := range s.Jobs {
			names = append(names, j.Service)
		}
		return names
	}
	until := func(what string, look func() error) {
		t.Helper()
		if err := poll(patience, look); err != nil {
			t.Fatalf("%s: %v; hinit said:\n%s", what, err, said())
		}
	}
	full := func() error {
		if n := len(waiting()); n != 100 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	}
	until("the queue is not full", full)
	queue := waiting()
	for range 2 {
		pid := 0
		until("hinit-actions is not up", func() error {
			if pid = helper(); pid == 0 {
				return errors.New("it has no pid")
			}
			return nil
		})
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until("hinit-actions does not come back", func() error {
			if now := helper(); now == 0 || now == pid {
				return fmt.Errorf("its pid is %d", now)
			}
			return full()
		})
	}
	hook.isDown.Store(false)
	until("not all were delivered", func() error {
		if got, _ := hook.services(); len(got) < len(queue) {
			return fmt.Errorf("%d of %d are", len(got), len(queue))
		}
		return nil
	})
	until("the queue is not empty", func() error {
		if n := len(waiting()); n != 0 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	got, all := hook.services()
	if slices.Sort(queue); !slices.Equal(slices.Sorted(slices.Values(got)), queue) { // A failed event moves behind the others.
		t.Errorf("delivered were\n%v\nnot\n%v", got, queue)
	}
	if all > len(queue)+2 {
		t.Errorf("%d were delivered for %d events and 2 ends of the program", all, len(queue))
	}
	var dropped []string
	for _, m := range regexp.MustCompile(`an action is dropped, .*service=(\S+)`).FindAllStringSubmatch(said(), -1) {
		dropped = append(dropped, m[1])
	}
	if every := slices.Sorted(slices.Values(slices.Concat(got, dropped))); len(dropped) != services-100 || len(slices.Compact(every)) != services {
		t.Errorf("%d services: %d were delivered, and these named as dropped: %v", services, len(got), dropped)
	}
}
