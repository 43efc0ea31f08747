package web

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/testkit"
)

var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if testkit.SkippedInShort() {
		return 0
	}
	testkit.IsolateProcess()
	dir, err := os.MkdirTemp("", "hinit-web-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	if err := testkit.Build(dir, "hinit", "hinit-web"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// webContainer is a plain supervisor with services.
type webContainer struct {
	*testing.T
	dir    string
	client *dial.Client
}

func newWebContainer(t *testing.T, config string) *webContainer {
	t.Helper()
	t.Parallel()
	dir, err := os.MkdirTemp("/var/tmp", "hweb-") //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &webContainer{T: t, dir: dir, client: dial.New(dir + "/run/control.sock")}
	for _, sub := range []string{"run", "logs"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.write("hinit.yaml", config)
	b.start("hinit", "run", "-c", dir+"/hinit.yaml")
	testkit.Until(t, "hinit answers", func() bool { _, err := b.client.Status(t.Context()); return err == nil })
	return b
}

func (b *webContainer) write(name, text string) string {
	b.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "$DIR", b.dir)), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

func (b *webContainer) command(name string, args ...string) *exec.Cmd {
	path := name
	if !strings.Contains(name, "/") {
		path = filepath.Join(bin, name)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = b.dir
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + b.dir, "HINIT_RUNTIME_DIR=" + b.dir + "/run"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs a program until the test ends.
func (b *webContainer) start(name string, args ...string) (*exec.Cmd, *output) {
	b.Helper()
	cmd, out := b.command(name, args...), &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(testkit.Patience):
			_ = cmd.Process.Kill()
			<-ended
		}
		if b.Failed() {
			text := out.String()
			b.Logf("%s said:\n%s", name, text[max(0, len(text)-3000):])
		}
	})
	return cmd, out
}

func (b *webContainer) page(args ...string) string {
	b.Helper()
	_, out := b.start("hinit", append([]string{"web", "--listen", "127.0.0.1:0"}, args...)...)
	address := ""
	testkit.Until(b.T, "the page is served", func() bool {
		_, rest, is := strings.Cut(out.String(), "serving on ")
		address, _, _ = strings.Cut(rest, "\n")
		return is && address != ""
	})
	return strings.TrimSuffix(address, "/")
}

func (b *webContainer) get(url string) string {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return string(text)
}

const services = `
services:
  talker: {command: [/bin/sh, -c, 'while :; do echo beat; sleep 0.2; done']}
  crasher: {command: [/bin/sh, -c, 'echo going; exit 3'], restart: {initial: 50ms, max: 100ms}}
logs: {dir: $DIR/logs}
`

// requireProgram skips a test if a program from Debian is missing.
func requireProgram(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		testkit.SkipOrFail(t, "needs "+program+" (test/install-tools)")
	}
	return path
}

func TestARealPrometheusScrapesThePage(t *testing.T) {
	prometheus, promtool := requireProgram(t, "prometheus"), requireProgram(t, "promtool")
	b := newWebContainer(t, services)
	examples, err := filepath.Abs("../../examples/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", examples + "/alerts.yml"}, {"test", "rules", examples + "/alerts_test.yml"}, {"check", "config", examples + "/prometheus.yml"},
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	token := "a token that is long enough"
	page := b.page("--token-file", b.write("token", token))
	target := strings.TrimPrefix(page, "http://")
	rules := strings.ReplaceAll(read(t, examples+"/alerts.yml"), "for: 1m", "for: 0s")
	b.write("alerts.yml", rules)
	b.write("prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [alerts.yml]
scrape_configs:
  - {job_name: hinit, authorization: {credentials: %q}, static_configs: [{targets: [%q]}]}
`, token, target))
	_, out := b.start(prometheus, "--config.file="+b.dir+"/prometheus.yml", "--storage.tsdb.path="+b.dir+"/data", "--web.listen-address=127.0.0.1:0")
	var api string
	testkit.Until(t, "prometheus listens", func() bool {
		_, rest, is := strings.Cut(out.String(), `msg="Listening on" address=`)
		address, _, whole := strings.Cut(rest, "\n")
		api = "http://" + address + "/api/v1/query?query="
		return is && whole
	})
	ask := func(query string) float64 {
		var reply struct {
			Data struct{ Result []struct{ Value [2]any } }
		}
		_ = json.Unmarshal([]byte(b.get(api+query)), &reply)
		if len(reply.Data.Result) != 1 {
			return -1
		}
		var n float64
		_, _ = fmt.Sscan(fmt.Sprint(reply.Data.Result[0].Value[1]), &n)
		return n
	}
	for query, least := range map[string]float64{
		`up{job="hinit"}`: 1, `hinit_up`: 1, `hinit_service_up{service="talker"}`: 1, `hinit_service_restarts_total{service="crasher",cause="crash"}`: 5,
		`hinit_service_exits_total{service="crasher",cause="crash"}`: 5, `hinit_service_crash_loop{service="crasher"}`: 1,
		`hinit_service_log_lines_total{service="talker"}`: 2, `hinit_service_memory_bytes{service="talker"}`: 1, `hinit_service_processes{service="talker"}`: 1,
		`hinit_service_open_fds{service="talker"}`: 3, `hinit_process_resident_memory_bytes`: 1 << 20,
		`ALERTS{alertname="ServiceCrashLoop",service="crasher",alertstate="firing"}`: 1,
	} {
		testkit.Until(t, query, func() bool { return ask(query) >= least })
	}
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, examples+"/dashboard.json")), &dashboard); err != nil || len(dashboard.Panels) < 10 {
		t.Fatalf("%d panels, %v", len(dashboard.Panels), err)
	}
	families := b.command("hinit", "metrics")
	known, err := families.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			query := strings.ReplaceAll(target.Expr, "$instance", ".*")
			if reply := b.get(api + strings.NewReplacer(" ", "%20", "+", "%2B", "{", "%7B", "}", "%7D", `"`, "%22", ">", "%3E").Replace(query)); !strings.Contains(reply, `"status":"success"`) {
				t.Errorf("the dashboard asks %s: %s", query, reply)
			}
		}
	}
	if !bytes.Contains(known, []byte("\nhinit_up 1\n")) {
		t.Errorf("hinit metrics prints\n%s", known)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAnEventIsLiveWithinASecond measures, with a real hinit, the time from the end of a process to the line of the stream.
func TestAnEventIsLiveWithinASecond(t *testing.T) {
	b := newWebContainer(t, services)
	page := b.page()
	answer, err := http.Get(page + "/live")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(answer.Body); scan.Scan(); {
			lines <- scan.Text()
		}
	}()
	testkit.Until(t, "the talker is up", func() bool {
		s, err := b.client.Service(t.Context(), "talker")
		return err == nil && s.State == client.StateUp && s.PID > 0
	})
	s, err := b.client.Service(t.Context(), "talker")
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(testkit.Patience)
	killed := false
	for {
		select {
		case line, open := <-lines:
			if !open {
				t.Fatal("the stream ended")
			}
			if !killed && strings.Contains(line, "talker") {
				killed = true
				if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			} else if strings.Contains(line, "SIGKILL") {
				return
			}
		case <-deadline:
			t.Fatal("the end of a process never comes")
		}
	}
}

func TestAnAddressForOthersNeedsAToken(t *testing.T) {
	b := newWebContainer(t, services)
	out, err := b.command("hinit-web", "serve", "--listen", "0.0.0.0:0").CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "cannot serve the page: other machines reach 0.0.0.0:0, and there is no token") {
		t.Errorf("%v, %s", err, out)
	}
	out, err = b.command("hinit-web", "serve", "--token-file", b.write("short", "abc")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "less than 16 characters") {
		t.Errorf("%v, %s", err, out)
	}
}

// TestWithoutTheProgramAllElseWorks checks a hinit without hinit-web beside it: everything else must work.
func TestWithoutTheProgramAllElseWorks(t *testing.T) {
	b := newWebContainer(t, services)
	for _, program := range []string{"hinit", "hinit-tools"} {
		text, err := os.ReadFile(filepath.Join(bin, program))
		if err == nil {
			err = os.WriteFile(filepath.Join(b.dir, program), text, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	alone := b.dir + "/hinit"
	for _, verb := range []string{"web", "metrics", "forward"} {
		out, err := b.command(alone, verb).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "there is no "+b.dir+"/hinit-web; install it beside hinit") {
			t.Errorf("%s: %v, %s", verb, err, out)
		}
	}
	for _, args := range [][]string{{"status"}, {"restart", "talker"}, {"logs", "talker"}, {"stop", "talker"}} {
		if out, err := b.command(alone, args...).CombinedOutput(); err != nil && args[0] != "status" {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}
