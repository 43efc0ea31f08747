package tenants_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

const (
	webPort  = 18733
	webToken = "0123456789-token-of-the-page"
	// secretTask is the title of the victim's task on the board.
	secretTask = "secret-task-of-the-victim"
	// crashedProfile is the profile that the attacker makes crash, and slot is the directory of another one for the tools of s6.
	crashedProfile = 5
	slotName       = "/run/service/gateway-t06"
)

// attacks are all attacks on another profile and PID 1.
var attacks = slices.Concat(attacksOnProfile, attacksByServices)

// attacksByServices are attacks on files and processes that belong to hinit and its companions, but show or hold something of the victim.
var attacksByServices = []attack{
	{"make it crash", true, func(target) error {
		pid, err := gatewayOf(crashedProfile)
		return errors.Join(err, syscall.Kill(cmp.Or(pid, -1<<30), syscall.SIGABRT))
	}},
	{coreRow, true, func(f target) error {
		found, _ := filepath.Glob(f.victimDir + "/core*")
		return read(append(found, f.victimDir+"/core")[0])
	}},
	{"let PID 1 dump core", false, func(target) error {
		return unix.Prlimit(1, unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}, nil)
	}},
	{"read its archived logs", true, func(f target) error {
		dir := f.dir + "/home/logs/gateways/" + name(1)
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			if err == nil && e.Name() != "current" && !e.IsDir() {
				return read(dir + "/" + e.Name())
			}
		}
		return cmp.Or(err, errors.New("there is none"))
	}},
	{"write into its log", true, func(f target) error {
		file, err := os.OpenFile(f.dir+"/home/logs/gateways/"+name(1)+"/current", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		return file.Close()
	}},
	{"read its log through hinit logs", true, func(f target) error { return outputContains(f, "victim:", "hinit", "logs", name(1)) }},
	{"follow its log through hinit logs -f", true, func(f target) error { return outputContains(f, "victim:", "hinit", "logs", "-f", name(1)) }},
	{"follow its events through hinit", true, func(f target) error {
		return control(f, http.MethodGet, "/v1/events?follow=1&last=1000", "gateway-"+name(1))
	}},
	{"follow its status through hinit", true, func(f target) error { return control(f, http.MethodGet, "/v1/status/follow", "gateway-"+name(1)) }},
	{"read the runs of hinit", true, func(f target) error { return control(f, http.MethodGet, "/v1/runs", "runs") }},
	{"read the configuration through hinit", true, func(f target) error { return control(f, http.MethodGet, "/v1/config", "entries") }},
	{"start a worker of it through hinit", true, func(f target) error {
		return control(f, http.MethodPost, `/v1/runs {"template": "kanban-worker", "tag": "planted", "profile": "`+name(1)+`", "task": "t_1"}`, "kanban-worker")
	}},
	{"say in its name that it has a problem", false, func(f target) error {
		return control(f, http.MethodPost, "/v1/services/gateway-"+name(1)+`/say {"text": "planted"}`, "")
	}},
	{"become PID 1 by hinit", false, func(f target) error {
		return control(f, http.MethodPost, `/v1/reexec {"binary": "`+f.dir+`/bin/role"}`, "image")
	}},
	{"stop it by the FIFO for orders", false, func(f target) error { return write(f.dir+"/run/orders", "stop "+name(3)+"\n") }},
	{"stop it by the tools of s6", true, func(f target) error {
		return control(f, http.MethodPost, `/v1/slots/control {"dir": "`+slotName+`", "flags": "d"}`, "")
	}},
	{"end the container by the tools of s6", false, func(f target) error {
		return control(f, http.MethodPost, `/v1/slots/scan {"flags": "t"}`, "")
	}},
	{"read its tasks on the board", true, func(f target) error { return outputContains(f, secretTask, "hinit-kanban", "list") }},
	{"read the file of the board", true, func(f target) error { return read(f.dir + "/home/kanban.db") }},
	{"change its task on the board", true, func(f target) error {
		id, err := os.ReadFile(f.dir + "/bin/task")
		return errors.Join(err, outputContains(f, "", "hinit-kanban", "comment", string(id), "planted"))
	}},
	{"make a task for it on the board", true, func(f target) error {
		return outputContains(f, "", "hinit-kanban", "create", "planted", "--assignee", name(1))
	}},
	{"remove the board", true, func(f target) error {
		return errors.Join(os.Rename(f.dir+"/home/kanban.db", f.dir+"/home/moved.db"), os.Rename(f.dir+"/home/moved.db", f.dir+"/home/kanban.db"))
	}},
	{"open the status page without a token", false, func(target) error { return requestStatusPage(http.MethodGet, "/", nil) }},
	{"open the status page by a forged Host and Origin", false, func(target) error {
		return requestStatusPage(http.MethodGet, "/service/gateway-"+name(1)+"/log", http.Header{
			"Host": {"localhost"}, "Origin": {"http://localhost"}, "X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"localhost"}, "Forwarded": {"for=127.0.0.1"},
		})
	}},
	{"read the metrics of the status page", false, func(target) error { return requestStatusPage(http.MethodGet, "/metrics", nil) }},
	{"stop it by the status page with a forged Origin", false, func(target) error {
		return requestStatusPage(http.MethodPost, "/service/gateway-"+name(1)+"/stop", http.Header{"Origin": {"http://127.0.0.1:" + strconv.Itoa(webPort)}, "Sec-Fetch-Site": {"same-origin"}})
	}},
	{"find the token of the status page", true, func(target) error { _, err := searchToken(); return err }},
	{"read its log on the status page", true, func(target) error {
		token, err := searchToken()
		return errors.Join(err, requestStatusPage(http.MethodGet, "/service/gateway-"+name(1)+"/log", http.Header{"Authorization": {"Bearer " + token}}))
	}},
	{sandboxesRow, true, func(f target) error { return outputContains(f, "", "hinit-sandbox", "ls") }},
	{"execute a command in its sandbox", false, func(f target) error {
		return outputContains(f, "it could", "hinit-sandbox", "exec", "--profile", name(1), "--task", filepath.Base(f.dir), "--", "echo", "it could")
	}},
	{mountRow, true, func(f target) error {
		id := filepath.Base(f.dir) + "-mine"
		err := outputContains(f, "", "docker", "run", "-d", "--name", id, "--label", "hermes-agent=1", "--label", "hermes-task-id="+filepath.Base(f.dir),
			"--label", "hermes-profile="+name(0), "--network=none", "-v", f.victimDir+":/b", image, "sleep", "1000")
		return errors.Join(err, outputContains(f, "of-"+name(1), "docker", "exec", id, "cat", "/b/.env"))
	}},
	{"remove its sandbox", false, func(f target) error {
		return outputContains(f, "", "hinit-sandbox", "rm", "--profile", name(1), "--task", filepath.Base(f.dir))
	}},
	{"ask the container engine itself", false, func(f target) error { return connect("unix", f.dir+"/engine.sock") }},
	{"read the environment of its docker exec", true, func(target) error { return openExecProcFile("environ") }},
	{"open the memory of its docker exec", false, func(target) error { return openExecProcFile("mem") }},
	{"follow the descriptors of its docker exec", true, func(target) error { return openExecProcFile("fd/0") }},
}

// Names of attacks that succeed only on some machines.
const (
	coreRow      = "read its core file"
	sandboxesRow = "list the sandboxes"
	mountRow     = "read its files through a sandbox"
	setattrRow   = "leave its project quota by file_setattr"
)

// needs are the conditions for such attacks where nothing is isolated.
var needs = map[string]func() bool{coreRow: coresInDirectory, sandboxesRow: hasDocker, mountRow: hasDocker, setattrRow: hasSetattr}

// hasSetattr reports whether the kernel knows the system call file_setattr (Linux 6.17).
func hasSetattr() bool {
	return !errors.Is(syscall6(unix.SYS_FILE_SETATTR, 0, 0, 0, 0, 0), unix.ENOSYS)
}

// coresInDirectory reports whether a process that crashes can leave a core file in its working directory.
func coresInDirectory() bool {
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	var limit unix.Rlimit
	return err == nil && unix.Getrlimit(unix.RLIMIT_CORE, &limit) == nil && limit.Max != 0 && !strings.ContainsAny(string(pattern), "|/")
}

// dumpCore crashes a child process in a directory.
func dumpCore(dir string) {
	cmd := exec.Command("/bin/sh", "-c", "ulimit -c unlimited; kill -ABRT $$")
	cmd.Dir = dir
	_ = cmd.Run() // The child crashes, so an error is expected.
}

// gatewayOf finds the gateway of a profile by its command line.
func gatewayOf(i int) (int, error) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range found {
		if text, _ := os.ReadFile(file); strings.HasSuffix(string(text), "/role\x00"+name(i)+"\x00") {
			return strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return 0, errors.New("it does not run")
}

func write(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// outputContains runs a program of hinit as the operator would. It returns an error unless the output
// contains words.
func outputContains(f target, words, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.dir+"/bin/"+program, args...)
	home := f.dir + "/home"
	if program == "docker" {
		home = f.home // Use the environment of the profile's gateway.
	}
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + f.home, "HERMES_HOME=" + home, "TERMINAL_DOCKER_IMAGE=" + image, "HINIT_SANDBOX_SOCKET=" + f.dir + "/run/sandbox.sock", "HINIT_CONFIG=" + f.dir + "/hinit.yaml"}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		return err
	}
	var out []byte
	for part := make([]byte, 4096); words == "" || !bytes.Contains(out, []byte(words)); {
		n, err := read.Read(part)
		if out = append(out, part[:n]...); err != nil {
			break
		}
	}
	if words != "" && bytes.Contains(out, []byte(words)) {
		cancel()
		_ = cmd.Wait()
		return nil
	}
	if err := cmd.Wait(); err != nil || words != "" {
		return fmt.Errorf("%w: %s", cmp.Or(err, errors.New("it does not say so")), bytes.TrimSpace(out))
	}
	return nil
}

// control sends a request to hinit. It returns an error unless the answer is a success that
// contains words.
func control(f target, method, target, words string) error {
	target, body, _ := strings.Cut(target, " ")
	request, err := http.NewRequest(method, "http://hinit"+target, strings.NewReader(body))
	if err != nil {
		return err
	}
	return sendRequest(request, "unix", f.dir+"/run/control.sock", words)
}

// requestStatusPage asks the status requestStatusPage.
func requestStatusPage(method, path string, header http.Header) error {
	request, err := http.NewRequest(method, "http://127.0.0.1:"+strconv.Itoa(webPort)+path, http.NoBody)
	if err != nil {
		return err
	}
	maps.Copy(request.Header, header)
	request.Host = cmp.Or(header.Get("Host"), request.Host)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return sendRequest(request, "tcp", request.URL.Host, "")
}

func sendRequest(request *http.Request, network, address, words string) error {
	ctx, cancel := context.WithTimeout(request.Context(), time.Minute)
	defer cancel()
	client := http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := client.Do(request.WithContext(ctx))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var text []byte
	for part := make([]byte, 4096); !bytes.Contains(text, []byte(words)) || len(text) == 0; {
		n, err := answer.Body.Read(part)
		if text = append(text, part[:n]...); err != nil {
			break
		}
	}
	if answer.StatusCode/100 != 2 || !bytes.Contains(text, []byte(words)) {
		return fmt.Errorf("%s: %s", answer.Status, text[:min(len(text), 300)])
	}
	return nil
}

// searchToken searches all processes' environments for the page's token.
func searchToken() (string, error) {
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range found {
		if text, _ := os.ReadFile(file); bytes.Contains(text, []byte("HINIT_WEB_TOKEN=")) {
			_, rest, _ := bytes.Cut(text, []byte("HINIT_WEB_TOKEN="))
			token, _, _ := bytes.Cut(rest, []byte{0})
			return string(token), nil
		}
	}
	return "", errors.New("no readable environment has it")
}

// minExecs is the number of docker exec processes that an attacker must examine as root, and after
// they drop root.
const minExecs = 5

// notTriedPrefix begins the failure of an attack that has not been tried.
const notTriedPrefix = "not tried: "

// openExecProcFile opens a /proc file of a process with which an operator runs the agent's command.
func openExecProcFile(file string) error {
	ofRoot, others := make(map[string]error), make(map[string]error)
	for deadline := time.Now().Add(patience); len(ofRoot) < minExecs || len(others) < minExecs; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s%d processes of root and %d of others are too few", notTriedPrefix, len(ofRoot), len(others))
		}
		found, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range found {
			command, _ := os.ReadFile(dir + "/cmdline")
			if !bytes.Contains(command, []byte("\x00-p\x00"+name(1)+"\x00")) {
				continue
			}
			err := openPath(dir + "/" + file)
			if err == nil {
				return nil
			}
			var owner unix.Stat_t
			switch {
			case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || unix.Stat(dir, &owner) != nil: // The process has ended.
			case owner.Uid == 0:
				ofRoot[dir] = err
			default:
				others[dir] = err
			}
		}
	}
	for _, err := range others {
		return err
	}
	return nil
}

func openPath(path string) error {
	switch filepath.Base(path) {
	case "environ":
		return read(path)
	case "0":
		_, err := os.Readlink(path)
		return err
	}
	return open(path)
}

// imageMounts are mounts that make the container look like an image to the exec shim.
const imageMounts = `{ ! [ -S /run/docker.sock ] || { : >"$1/engine.sock" && mount --bind /run/docker.sock "$1/engine.sock"; }; } && ` +
	`mount -t tmpfs -o mode=755 none /run && mkdir /run/hinit && mount --bind "$1/run" /run/hinit && mount --bind "$1/opt" /opt && mount --bind "$1/local" /usr/local/bin && mount --bind "$1/passwd" /etc/passwd && `

// imageVar is the variable with the name of the image, for the processes in the container.
const imageVar = "HINIT_TENANTS_IMAGE"

// image is the name of the image of sandboxes, which only this run of the tests has.
var image = cmp.Or(os.Getenv(imageVar), fmt.Sprintf("hinit-tenants-test:%d-%d", os.Getpid(), time.Now().UnixNano()))

var hasDocker = sync.OnceValue(func() bool { return exec.Command("docker", "version").Run() == nil })

// hasEngine reports whether sandboxes can be made here, and makes their image.
var hasEngine = sync.OnceValues(func() (bool, error) {
	if !hasDocker() {
		return false, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	context, err := os.MkdirTemp("", "hinit-tenants-image-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(context)
	for _, program := range []string{"bash", "busybox"} {
		kept := filepath.Join(cache, "hinit", program+"-static-"+runtime.GOARCH)
		if _, err := os.Stat(kept); err != nil {
			if out, err := exec.Command("../../docker/"+program, runtime.GOARCH, kept).CombinedOutput(); err != nil {
				return false, fmt.Errorf("%w: %s", err, out)
			}
		}
		text, err := os.ReadFile(kept)
		if err := errors.Join(err, os.WriteFile(filepath.Join(context, program), text, 0o755)); err != nil {
			return false, err
		}
	}
	text := "FROM scratch\nENV PATH=/bin\nCOPY bash busybox /bin/\nRUN [\"/bin/busybox\", \"sh\", \"-c\", \"busybox --install -s /bin && mkdir -p /tmp /root /etc && chmod 1777 /tmp && echo root:x:0:0::/root:/bin/bash >/etc/passwd\"]\n"
	if err := os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(text), 0o644); err != nil {
		return false, err
	}
	cmd := exec.Command("docker", "build", "-q", "--network=none", "-t", image, context)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return false, fmt.Errorf("cannot make the image of sandboxes: %w: %s", err, out)
	}
	return true, nil
})

// addServices prepares a container for the companions of hinit, and returns its variables.
func addServices(t *testing.T, dir string) []string {
	t.Helper()
	engine, err := hasEngine()
	programs := []string{"hinit-shim", "hinit-web", "hinit-kanban", "hinit-sandbox", "hinit-sandbox-helper"}
	err = errors.Join(err, testkit.Build(filepath.Join(dir, "bin"), programs...), os.MkdirAll(dir+"/opt/hermes/.venv/bin", 0o755),
		os.Symlink(dir+"/bin/role", dir+"/opt/hermes/.venv/bin/hermes"), os.Mkdir(dir+"/local", 0o755))
	passwd := fmt.Sprintf("root:x:0:0:root:/root:/bin/sh\nhermes:x:%[1]d:%[1]d:hermes:/opt/data:/bin/sh\n", agentID)
	err = errors.Join(err, os.WriteFile(dir+"/passwd", []byte(passwd), 0o644)) //nolint:gosec // the mode in all images
	err = errors.Join(err, os.Symlink("hinit-sandbox", dir+"/bin/docker"))
	for _, program := range append(programs, "hinit") {
		err = errors.Join(err, os.Symlink(dir+"/bin/"+program, dir+"/local/"+program))
	}
	if err != nil {
		t.Fatal(err)
	}
	variables := []string{"HINIT_S6=1", "HINIT_WEB=1", "HINIT_WEB_LISTEN=127.0.0.1:" + strconv.Itoa(webPort), "HINIT_WEB_TOKEN=" + webToken}
	if !engine {
		return variables
	}
	t.Cleanup(func() {
		for _, id := range sandboxes(dir) {
			_ = exec.Command("docker", "rm", "-fv", id).Run()
		}
	})
	return append(variables, "HINIT_SANDBOX=1", fmt.Sprintf("HINIT_SANDBOX_USER=%d", agentID), "DOCKER_HOST=unix://"+dir+"/engine.sock", "TERMINAL_DOCKER_IMAGE="+image, imageVar+"="+image,
		`TERMINAL_DOCKER_EXTRA_ARGS=["--network=none"]`, "TERMINAL_CONTAINER_DISK=0", "TERMINAL_CONTAINER_MEMORY=256")
}

// sandboxes returns the IDs of the sandboxes that belong to the container's directory.
func sandboxes(dir string) []string {
	out, _ := exec.Command("docker", "ps", "-aq", "--no-trunc", "--filter", "label=hermes-task-id="+filepath.Base(dir)).Output()
	return strings.Fields(string(out))
}

// inside runs a command in the container, as docker exec does.
func (c *container) inside(ctx context.Context, uid int, command ...string) ([]byte, error) {
	id := strconv.Itoa(uid)
	words := append([]string{"-t", strconv.Itoa(c.pid), "-m", "-p", "-n", "--", "setpriv", "--reuid", id, "--regid", id, "--clear-groups"}, command...)
	cmd := exec.CommandContext(ctx, "nsenter", words...)
	cmd.Env = append(slices.Clone(c.environ), "EXEC_SECRET=of-the-operator", roleVar+"=victim", "TENANTS_DIR="+c.dir)
	return cmd.CombinedOutput()
}

// prepareServices waits for hinit's companions, and gives the victim a task and a sandbox.
func (c *container) prepareServices(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must := func(uid int, command ...string) []byte {
		t.Helper()
		out, err := c.inside(ctx, uid, command...)
		if err != nil {
			t.Fatalf("%q: %v: %s", command, err, out)
		}
		return out
	}
	must(agentID, c.dir+"/bin/hinit-kanban", "create", secretTask, "--assignee", name(1), "--initial-status", "blocked")
	var tasks []struct{ ID string }
	if err := json.Unmarshal(must(agentID, c.dir+"/bin/hinit-kanban", "list", "--json"), &tasks); err != nil || len(tasks) != 1 {
		t.Fatal(tasks, err)
	}
	if err := os.WriteFile(c.dir+"/bin/task", []byte(tasks[0].ID), 0o644); err != nil { //nolint:gosec // the attacker reads this file
		t.Fatal(err)
	}
	testkit.Until(t, "the status page answers", func() bool {
		_, err := c.inside(ctx, 0, c.dir+"/bin/role", "page")
		return err == nil
	})
	testkit.Until(t, "hinit answers as s6", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root%s/supervise/control", c.pid, slotName))
		return err == nil
	})
	if engine, _ := hasEngine(); engine {
		testkit.Until(t, "the service of sandboxes answers", func() bool { _, err := c.inside(ctx, 0, c.dir+"/bin/hinit-sandbox", "ls"); return err == nil })
		must(0, c.dir+"/bin/hinit-sandbox", "exec", "--profile", name(1), "--task", filepath.Base(c.dir), "--", "true")
	}
}

// execs repeatedly runs the agent's command for the victim, until the test ends.
func (c *container) execs(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for failed := 0; ctx.Err() == nil && failed < 10; {
			if out, err := c.inside(ctx, 0, c.dir+"/bin/hinit-shim", "-p", name(1)); err != nil && ctx.Err() == nil {
				t.Errorf("docker exec: %v: %s", err, out)
				failed++
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-over })
}
