package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// wrongValues are common mistakes in the chart's values, each with the name that the schema's error
// message must contain.
var wrongValues = []struct{ values, name string }{
	{"name: Agents", "name"},
	{"name: a_b", "name"},
	{"name: ''", "name"},
	{"image: ''", "image"},
	{"image: 'a b'", "image"},
	{"image: 3", "image"},
	{"image: https://registry.example.org/hermes", "image"},
	{"image: 'hermes:'", "image"},
	{"image: hermes@sha256:abc", "image"},
	{"imagePullPolicy: always", "imagePullPolicy"},
	{"args: gateway run", "args"},
	{"args: [1]", "args.0"},
	{"user: 0", "user"},
	{"user: root", "user"},
	{"user: -1", "user"},
	{"user: 1.5", "user"},
	{"stopSeconds: 0", "stopSeconds"},
	{"stopSeconds: 30s", "stopSeconds"},
	{"stopSeconds: 99999", "stopSeconds"},
	{"drainSeconds: -1", "drainSeconds"},
	{"bootSeconds: 1", "bootSeconds"},
	{"console: text", "console"},
	{"env: [A=b]", "env"},
	{"env: {A: 1}", "env.A"},
	{"env: {'A-B': x}", "A-B"},
	{"env: {HINIT_STOP_TIMEOUT: 5s}", "HINIT_STOP_TIMEOUT"}, // Refused, because stopSeconds already sets this grace period.
	{"config: {services: {}}", "config"},
	{"secret: My_Secret", "secret"},
	{"secret: a..b", "secret"},
	{"storage: 1Gi", "storage"},
	{"storage: {size: 1 GB}", "storage.size"},
	{"storage: {size: -1Gi}", "storage.size"},
	{"storage: {size: 0Gi}", "storage.size"},
	{"storage: {accessMode: RWX}", "storage.accessMode"},
	{"storage: {className: 'a b'}", "storage.className"},
	{"storage: {existingClaim: Data}", "storage.existingClaim"},
	{"cpu: {limit: 1Gi}", "cpu.limit"},
	{"cpu: {request: 100Mi}", "cpu.request"},
	{"cpu: {limit: 0.5m}", "cpu.limit"},
	{"memory: {limit: lots}", "memory.limit"},
	{"memory: {limit: 1g}", "memory.limit"},
	{"memory: {limit: 512m}", "memory.limit"}, // refused, because 512m means half a byte
	{"memory: {request: 512}", "memory.request"},
	{"scratch: {run: true}", "scratch.run"},
	{"sandboxes: {images: debian}", "sandboxes.images"},
	{"sandboxes: {images: ['a,b']}", "sandboxes.images.0"},
	{"sandboxes: {kind: pod}", "sandboxes.kind"},
	{"sandboxes: {root: true}", "sandboxes.root"},
	{"sandboxes: {hostUsers: false}", "sandboxes.hostUsers"}, // refused, because YAML reads false as a boolean and not as a word
	{"sandboxes: {runtimeClassName: gVisor}", "sandboxes.runtimeClassName"},
	{"sandboxes: {networks: [host:x]}", "sandboxes.networks.0"},
	{"sandboxes: {apiServer: 10.0.0.1}", "sandboxes.apiServer"},
	{"sandboxes: {memoryMB: 5Gi}", "sandboxes.memoryMB"},
	{"sandboxes: {most: 0}", "sandboxes.most"},
	{"sandboxes: {idleSeconds: 1h}", "sandboxes.idleSeconds"},
	{"sandboxes: {warm: 65}", "sandboxes.warm"},
	{"sandboxes: {disk: all}", "sandboxes.disk"},
	{"sandboxes: {storage: 1GB}", "sandboxes.storage"},
	{"scratch: {tmp: '0'}", "scratch.tmp"}, // refused, because '0' would mean no limit
	{"web: true", "web"},
	{"web: {enabled: 'yes'}", "web.enabled"},
	{"metrics: {port: 9120}", "port"},
	{"standby: {enable: true}", "enable"},
	{"replicas: 3", "replicas"},
	{"Storage: {}", "Storage"},
	{"networkPolicy: {enabled: null, deny: all}", "deny"},
	{"lease: {seconds: 2}", "lease.seconds"},
	{"lease: {seconds: 15s}", "lease.seconds"},
	{"lease: {apiServer: kubernetes.default.svc}", "lease.apiServer"},
	{"lease: {apiServer: 10.0.0.1}", "lease.apiServer"},
	{"lease: {apiServer: 10.0.0.256/32}", "lease.apiServer"},
	{"lease: {apiServer: 10.0.0.1/33}", "lease.apiServer"},
	{"lease: {name: agents}", "name"},
}

// wrongForHinit are wrong values that a schema can't detect, each with the name that hinit's error
// message must contain.
var wrongForHinit = []struct{ values, name string }{
	{"config: 'services: {web: {comand: [httpd]}}'", "services.web.comand"},
	{"config: 'agent: {env_file: secrets/agent}'", "agent.env_file"},
	{"config: 'on: {parked: {webhook: example.org}}'", "on.parked"},
	{"config: 'restart: {max: fast}'", "restart.max"},
	{"config: 'profiles: {coder: {priority: urgent}}'", "profiles.coder.priority"},
	{"config: 'services: {web: {command: [httpd], needs: [webb]}}'", "services.web.needs"},
	{"config: 'a: [1'", "hinit.yaml"},
	{"env: {HINIT_BOOT: imag}", "HINIT_BOOT"},
	{"env: {HINIT_RUNTIME_DIR: run}", "HINIT_RUNTIME_DIR"},
	{"env: {HERMES_DASHBOARD_PORT: '99999'}", "HERMES_DASHBOARD_PORT"},
	{"env: {HERMES_HOME: data}", "HERMES_HOME"},
	{"env: {HINIT_BOOT_STRICT: maybe}", "HINIT_BOOT_STRICT"},
}

func parse(t *testing.T, text string) (values map[string]any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// TestAWrongValueIsRefusedByItsName checks that Helm refuses each wrong value and names it.
func TestAWrongValueIsRefusedByItsName(t *testing.T) {
	if len(wrongValues)+len(wrongForHinit) < 30 {
		t.Error("too few")
	}
	for _, wrong := range wrongValues {
		_, err := renderHelm(t, parse(t, wrong.values))
		// The schema library writes paths with slashes. An unknown name has no path.
		path := "'/" + strings.ReplaceAll(wrong.name, ".", "/") + "'"
		if err == nil || !strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), "'"+wrong.name+"'") {
			t.Errorf("%q: %v", wrong.values, err)
		}
	}
}

func TestAnUnusualValueIsTaken(t *testing.T) {
	for _, right := range []string{
		"image: localhost:5000/team/hermes:1.2@sha256:" + strings.Repeat("0a", 32), "image: hermes", "image: Registry.Example.org/a/b__c-d:v1", "user: 1000650000",
		"cpu: {request: 0.25, limit: ''}", "cpu: {limit: 1500m}", "memory: {limit: 1073741824, request: 0.5Gi}", "storage: {size: 1.5Ti, className: fast.example.org}",
		"lease: {apiServer: fd00::1/128}", "lease: {apiServer: 10.96.0.1/32}", "env: {_a: ''}", "scratch: {run: 500k}",
	} {
		text := strings.NewReplacer("0.25", "'0.25'", "1073741824", "'1073741824'").Replace(right)
		if _, err := renderHelm(t, parse(t, text)); err != nil {
			t.Errorf("%q: %v", right, err)
		}
	}
}

// TestHinitRefusesAWrongConfigurationByItsName checks that hinit refuses the configuration and environment that its
// container would get from a wrong value of the chart.
func TestHinitRefusesAWrongConfigurationByItsName(t *testing.T) {
	bin := t.TempDir()
	hinit := filepath.Join(bin, "hinit")
	build := exec.Command("go", "build", "-o", bin, "./cmd/hinit", "./cmd/hinit-tools")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	check := func(values string) (string, error) {
		all, err := renderHelm(t, parse(t, values))
		if err != nil {
			t.Fatalf("%q: %v", values, err)
		}
		file := filepath.Join(t.TempDir(), "hinit.yaml")
		text := ""
		if config, is := all["ConfigMap/agents-config"].(map[string]any); is {
			text = config["data"].(map[string]any)["hinit.yaml"].(string)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(hinit, "config", "check", file) //nolint:gosec // the test has built this program above
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		pod := all["StatefulSet/agents"].(map[string]any)["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		for _, v := range pod["containers"].([]any)[0].(map[string]any)["env"].([]any) {
			if value, plain := v.(map[string]any)["value"]; plain {
				cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%s", v.(map[string]any)["name"], value))
			}
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, wrong := range wrongForHinit {
		if out, err := check(wrong.values); err == nil || !strings.Contains(out, wrong.name) {
			t.Errorf("%q: %v, %s", wrong.values, err, out)
		}
	}
	if out, err := check("config: 'agent: {env_file: /run/secrets/agent}'"); err != nil {
		t.Errorf("a right one: %v, %s", err, out)
	}
}

// TestEveryValueOfTheChartIsTriedWrong checks that wrongValues has a row for each value of the chart. Add a row for a
// new value.
func TestEveryValueOfTheChartIsTriedWrong(t *testing.T) {
	for _, v := range Values() {
		top, _, _ := strings.Cut(v.Path, ".")
		if !slices.ContainsFunc(wrongValues, func(w struct{ values, name string }) bool { return strings.HasPrefix(w.values, top+":") }) {
			t.Errorf("no wrong value of %s", v.Path)
		}
	}
}
