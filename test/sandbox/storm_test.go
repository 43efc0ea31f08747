package sandbox_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// span is the duration of the storm.
var span = flag.Duration("span", 5*time.Second, "how long the storm lasts")

// storm counts its clients' commands by their answers.
type storm struct {
	*installation
	mu      sync.Mutex
	n       int
	results map[string][]string
}

func (s *storm) next() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	return s.n
}

func (s *storm) record(how, word string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results[how] = append(s.results[how], word)
}

// stormLeft marks processes that must not outlive their client.
const stormLeft = "sleep 86399"

var stormTasks = []string{"t0", "t1", "t2"}

// client runs commands until the storm ends, and kills some of them with their client.
func (s *storm) client(end time.Time) {
	for time.Now().Before(end) {
		n := s.next()
		word, want := fmt.Sprintf("w%d", n), 40+n%20
		args := []string{"exec", "--task", stormTasks[rand.IntN(len(stormTasks))], "--", "sh", "-c"}
		if rand.IntN(8) == 0 {
			cmd := exec.Command(filepath.Join(built, "hinit-sandbox"), append(args, "echo "+word+" >> /workspace/log; "+stormLeft)...)
			cmd.Env = append(cleanEnv(), s.env...)
			setUser(cmd, s.uid)
			if cmd.Start() == nil {
				<-time.After(time.Duration(rand.IntN(1500)) * time.Millisecond)
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				s.record("killed", word)
			}
			continue
		}
		r := s.sandbox(append(args, fmt.Sprintf("echo %s >> /workspace/log; sleep 0.0%d; exit %d", word, rand.IntN(10), want))...)
		switch r.code {
		case want:
			s.record("done", word)
		case 137:
			s.record("lost", word)
		case -1:
			s.record("unanswered", word)
			s.t.Errorf("%s was not answered within %v", word, patience)
		default:
			s.record("not run", word)
			if !strings.HasPrefix(r.err, "cannot ") && !strings.HasPrefix(r.err, "hinit: cannot ") {
				s.t.Errorf("%s: %v", word, r)
			}
		}
	}
}

// disturb repeatedly disturbs the containers or the service.
func (s *storm) disturb(svc *service, end time.Time) {
	for time.Now().Before(end) {
		<-time.After(time.Duration(200+rand.IntN(1800)) * time.Millisecond)
		have := s.containers()
		if len(have) == 0 {
			continue
		}
		id := have[rand.IntN(len(have))]
		switch what := rand.IntN(10); what {
		case 0:
			s.pause(id)
		case 1, 2, 3, 4:
			docker("kill", id)
			s.record("kills", id)
		case 5:
			docker("stop", "-t", "0", id)
			s.record("stops", id)
		case 6, 7:
			docker("rm", "-f", id)
			s.record("removals", id)
		default:
			svc.kill()
			svc.start()
			s.record("ends of the service", "")
		}
	}
}

// pause pauses a container for a moment. Some engines deadlock on a frozen runc; then the kernel's
// freezer ends the pause.
func (s *storm) pause(id string) {
	docker("pause", id)
	<-time.After(time.Duration(rand.IntN(600)) * time.Millisecond)
	unpaused := make(chan result, 1)
	go func() { unpaused <- docker("unpause", id) }()
	select {
	case <-unpaused:
	case <-time.After(30 * time.Second):
	}
	if thaw(id) {
		s.record("left frozen by the engine", id)
		<-unpaused
		if state := docker("inspect", "--format", "{{.State.Paused}}", id); state.out == "true\n" {
			docker("restart", "-t", "0", id) // The engine still calls the container paused, but its processes run.
		}
	}
	s.record("pauses", id)
}

// freezers returns the files that freeze a container in each cgroup version, with the word that
// thaws it.
func freezers(id string) map[string]string {
	const root = "/sys/fs/cgroup/"
	return map[string]string{
		root + "freezer/docker/" + id + "/freezer.state": "THAWED", root + "docker/" + id + "/cgroup.freeze": "0", root + "system.slice/docker-" + id + ".scope/cgroup.freeze": "0",
	}
}

func thaw(id string) bool {
	for file, thawed := range freezers(id) {
		if state, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(state)) != thawed {
			return os.WriteFile(file, []byte(thawed), 0o644) == nil
		}
	}
	return false
}

// TestStorm runs commands of many clients while containers and the service are disturbed. Lost
// commands must be reported, and none may run twice.
func TestStorm(t *testing.T) {
	p, svc := newService(t)
	s := &storm{installation: p, results: map[string][]string{}}
	end := time.Now().Add(*span)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { s.client(end) })
	}
	all.Go(func() { s.disturb(svc, end) })
	all.Wait()
	for _, task := range stormTasks { // Each sandbox must be usable afterwards.
		if r := p.sandbox("exec", "--task", task, "--", "true"); r.code != 0 {
			t.Errorf("a command in %s afterwards: %v", task, r)
		}
	}
	began := map[string]int{}
	for _, task := range stormTasks {
		log, _ := os.ReadFile(filepath.Join(p.home(), "sandboxes", "docker", task, "workspace", "log"))
		for word := range strings.FieldsSeq(string(log)) {
			began[word]++
		}
	}
	for how, limits := range map[string][2]int{"done": {1, 1}, "lost": {0, 1}, "not run": {0, 0}, "killed": {0, 1}, "unanswered": {0, 1}} {
		for _, word := range s.results[how] {
			if n := began[word]; n < limits[0] || n > limits[1] {
				t.Errorf("%s, whose client was told %q, began %d times", word, how, n)
			}
		}
	}
	testkit.Until(t, "all commands of dead clients have ended", func() bool {
		return !slices.ContainsFunc(p.containers(), func(id string) bool { return strings.Contains(docker("top", id, "-eo", "args").out, stormLeft) })
	})
	if have := p.containers(); len(have) != len(stormTasks) {
		t.Errorf("%d containers are left:\n%s", len(have), docker("ps", "-a", "--filter", "label=hermes-profile="+p.profile, "--format", "{{.ID}} {{.Names}} {{.CreatedAt}} {{.Status}}").out)
	}
	for _, id := range p.containers() {
		if top := docker("top", id, "-eo", "args").out; strings.Count(top, "attach") > 1 {
			t.Errorf("connections are left behind:\n%s", top)
		}
	}
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", svc.cmd.Process.Pid))
	if len(fds) > 40 {
		t.Errorf("the service has %d descriptors", len(fds))
	}
	account := ""
	for _, how := range []string{"done", "lost", "not run", "killed", "unanswered", "pauses", "left frozen by the engine", "kills", "stops", "removals", "ends of the service"} {
		account += fmt.Sprintf("%d %s, ", len(s.results[how]), how)
	}
	t.Logf("%d commands in %v: %s%d descriptors of the service at the end", s.n, *span, account, len(fds))
	if len(s.results["done"]) == 0 {
		t.Error("no command was done")
	}
}
