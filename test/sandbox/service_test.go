package sandbox_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"hinit/internal/testkit"
)

// service is an installation's process of hinit sandbox serve.
type service struct {
	p   *installation
	cmd *exec.Cmd
	log string
}

// newService creates an installation whose agents have their own user and use the service.
func newService(t *testing.T, env ...string) (*installation, *service) {
	t.Helper()
	p := newInstallation(t)
	p.uid = agentUID
	p.env = append(p.env, env...)
	for _, dir := range []string{p.root(), filepath.Dir(p.home()), p.home()} {
		if err := os.Chown(dir, agentUID, agentUID); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(p.dir, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &service{p: p, log: filepath.Join(p.dir, "serve.log")}
	s.start()
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			text, _ := os.ReadFile(s.log)
			t.Logf("the service said:\n%s", text)
		}
	})
	return p, s
}

func (s *service) start() {
	s.p.t.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.p.t.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(filepath.Join(built, "hinit-sandbox"), "serve", "--user", "12345")
	s.cmd.Env = append(append(append(cleanEnv(), "HINIT_SANDBOX_IMAGES="+image()), s.p.env...), "HERMES_HOME="+s.p.root())
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.p.t.Fatal(err)
	}
	testkit.Until(s.p.t, "the service listens", func() bool {
		c, err := net.Dial("unix", filepath.Join(s.p.dir, "run", "sandbox.sock"))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (s *service) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// inEachSetup runs a test with and without a service.
func inEachSetup(t *testing.T, test func(t *testing.T, p *installation)) {
	t.Run("service", func(t *testing.T) {
		testkit.Parallel(t)
		p, _ := newService(t)
		test(t, p)
	})
	t.Run("alone", func(t *testing.T) {
		testkit.Parallel(t)
		test(t, newInstallation(t))
	})
}
