package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

const deployDir = "../../deploy"

func TestTheFilesAreThoseOfTheSource(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if has, err := os.ReadFile(filepath.Join(deployDir, name)); err != nil || !bytes.Equal(has, want) {
			t.Errorf("%s is not what the source gives (%v); run: cd kubernetes && go generate", name, err)
		}
	}
	if page, err := os.ReadFile("../../../docs/reference/kubernetes.md"); err != nil || string(page) != Page() {
		t.Errorf("docs/reference/kubernetes.md is not what the source gives (%v); run: cd kubernetes && go generate", err)
	}
}

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(filepath.Join(deployDir, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// renderHelm returns the objects of the chart as Helm renders them.
func renderHelm(t *testing.T, values map[string]any) (map[string]any, error) {
	t.Helper()
	c := loadChart(t)
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "any", Namespace: "agents"}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(c, all)
	if err != nil {
		return nil, err
	}
	return parseObjects(t, strings.Join(slices.Collect(maps.Values(files)), "\n---\n")), nil
}

// parseObjects parses YAML documents. It drops namespaces and empty lists, which Helm does not render.
func parseObjects(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var o map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if o == nil || o["kind"] == "Namespace" {
			continue
		}
		metadata := o["metadata"].(map[string]any)
		delete(metadata, "namespace")
		// A subject's namespace defaults to the namespace of its object, so drop it.
		if subjects, ok := o["subjects"].([]any); ok {
			delete(subjects[0].(map[string]any), "namespace")
		}
		key := o["kind"].(string) + "/" + metadata["name"].(string)
		if out[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		out[key] = o
	}
	return out
}

// formatSorted formats a value with its lists sorted by name, because patches append in another order
// than templates.
func formatSorted(v any) string {
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, value := range v {
				walk(value)
			}
		case []any:
			for _, value := range v {
				walk(value)
			}
			if len(v) > 0 {
				if m, ok := v[0].(map[string]any); ok && (m["name"] != nil || m["mountPath"] != nil) {
					slices.SortFunc(v, func(a, b any) int { return strings.Compare(indentedJSON(a), indentedJSON(b)) })
				}
			}
		}
	}
	walk(v)
	return indentedJSON(v)
}

func indentedJSON(v any) string {
	out, _ := json.MarshalIndent(v, "", " ") // v was parsed from JSON, so Marshal can't fail
	return string(out)
}

// renderKustomize returns the output of kubectl kustomize for the base with components.
func renderKustomize(t *testing.T, components ...string) (string, error) {
	t.Helper()
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("kubectl, which has kustomize, is missing")
	}
	dir := t.TempDir()
	top := "resources: [deploy/base]\ncomponents:\n"
	for _, name := range components {
		top += "- deploy/components/" + name + "\n"
	}
	err = errors.Join(os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(deployDir)), os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(top), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(kubectl, "kustomize", dir).CombinedOutput()
	return string(out), err
}

// TestTheChartAndTheBaseAgree checks that the chart and the kustomize base render the same objects, alone and with each
// component.
func TestTheChartAndTheBaseAgree(t *testing.T) {
	sets := map[string]map[string]any{"": {}}
	for name, values := range Components() {
		sets[name] = map[string]any{}
		for path, value := range values {
			setPath(sets[name], path, value)
		}
	}
	for name, values := range sets {
		out, err := renderKustomize(t, strings.Fields(name)...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		base := parseObjects(t, out)
		rendered, err := renderHelm(t, values)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := slices.Sorted(maps.Keys(base)), slices.Sorted(maps.Keys(rendered)); !slices.Equal(a, b) {
			t.Errorf("component %q: kustomize has %v, Helm has %v", name, a, b)
			continue
		}
		for key := range base {
			if a, b := formatSorted(base[key]), formatSorted(rendered[key]); a != b {
				t.Errorf("component %q, %s: kustomize has\n%s\nHelm has\n%s", name, key, a, b)
			}
		}
	}
}

// TestSandboxesDontReachTheAPIServer checks that the NetworkPolicy of sandboxes excludes the address of the API server,
// which may be a public one of either family.
func TestSandboxesDontReachTheAPIServer(t *testing.T) {
	for address, want := range map[string]string{"203.0.113.7/32": `"169.254.0.0/16",      "203.0.113.7/32"`, "2001:db8::7/128": `"fe80::/10",      "2001:db8::7/128"`, "0.0.0.0/0": `"169.254.0.0/16"     ]`} {
		all, err := renderHelm(t, map[string]any{"sandboxes": map[string]any{"enabled": true, "apiServer": address}})
		if err != nil {
			t.Fatal(err)
		}
		if open := strings.ReplaceAll(indentedJSON(all["NetworkPolicy/agents-sandboxes-default"]), "\n", ""); !strings.Contains(strings.Join(strings.Fields(open), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("%s: %s", address, open)
		}
	}
}

// TestSandboxesAndALeaseAreRefused checks that the chart refuses sandboxes together with a lease. The agents can read
// the token of the lease, which belongs to the account of the sandbox service.
func TestSandboxesAndALeaseAreRefused(t *testing.T) {
	on := map[string]any{"enabled": true}
	for _, other := range []string{"lease", "standby"} {
		if _, err := renderHelm(t, map[string]any{"sandboxes": on, other: on}); err == nil || !strings.Contains(err.Error(), "sandboxes.enabled and a lease can't be together") {
			t.Error(other, err)
		}
	}
	if _, err := renderHelm(t, map[string]any{"sandboxes": on, "standby": map[string]any{"enabled": true, "lease": false}}); err != nil {
		t.Error(err)
	}
}

// TestSandboxesAndALeaseDoNotAgreeInKustomizeEither checks that kustomize refuses these components together, too.
// Otherwise agents would get a token that may make pods.
func TestSandboxesAndALeaseDoNotAgreeInKustomizeEither(t *testing.T) {
	for _, components := range [][]string{{"lease", "sandboxes"}, {"sandboxes", "standby"}} {
		if out, err := renderKustomize(t, components...); err == nil || !strings.Contains(out, "ID conflict") || !strings.Contains(out, "RoleBinding") {
			t.Errorf("%v: %v\n%s", components, err, out)
		}
	}
	if out, err := renderKustomize(t, "sandboxes", "standby-without-lease"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAStandbyHasALease checks that the component standby contains a lease. Without it, two pods on one volume would
// depend on the locks of its file system.
func TestAStandbyHasALease(t *testing.T) {
	for name, want := range map[string]bool{"standby": true, "standby-without-lease": false} {
		out, err := renderKustomize(t, name)
		if has := strings.Contains(out, "HINIT_LEASE_IDENTITY"); err != nil || has != want || !strings.Contains(out, "replicas: 2") {
			t.Errorf("%s: a lease %v, %v\n%s", name, has, err, out)
		}
	}
}

// TestTheServiceOfSandboxesReadsTheConfigurationOfTheAgents checks that the sandbox service gets the agents'
// hinit.yaml. Without it, the service would not know which profiles are isolated, and would not refuse them.
func TestTheServiceOfSandboxesReadsTheConfigurationOfTheAgents(t *testing.T) {
	all, err := renderHelm(t, map[string]any{"sandboxes": map[string]any{"enabled": true}, "config": "isolation: files\n"})
	if err != nil {
		t.Fatal(err)
	}
	pod := all["StatefulSet/agents"].(map[string]any)["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	for _, kind := range []string{"containers", "initContainers"} {
		if mounts := indentedJSON(pod[kind].([]any)[0].(map[string]any)["volumeMounts"]); !strings.Contains(mounts, `"mountPath": "/etc/hinit"`) {
			t.Errorf("%s: %s", kind, mounts)
		}
	}
}

func TestValuesReachThePod(t *testing.T) {
	all, err := renderHelm(t, map[string]any{
		"name": "team", "user": 1000650000, "stopSeconds": 120, "drainSeconds": 60, "secret": "keys", "config": "agent: {env_file: /run/secrets/agent}\n# \"quoted\"\n", "env": map[string]any{"TZ": "Europe/Berlin"}, "cpu": map[string]any{"limit": "2"},
		"storage": map[string]any{"existingClaim": "old"}, "networkPolicy": map[string]any{"enabled": false},
	})
	if err != nil {
		t.Fatal(err)
	}
	if all["NetworkPolicy/team"] != nil || all["PersistentVolumeClaim/team-data"] != nil {
		t.Error("what was switched off is there")
	}
	pod := indentedJSON(all["StatefulSet/team"])
	if config := indentedJSON(all["ConfigMap/team-config"]); !strings.Contains(config, `"hinit.yaml": "agent: {env_file: /run/secrets/agent}\n# \"quoted\"\n"`) {
		t.Error("the configuration is", config)
	}
	for _, want := range []string{
		`"name": "team-config"`, `"mountPath": "/etc/hinit"`, `"runAsUser": 1000650000`, `"terminationGracePeriodSeconds": 180`, `"60s"`, `"value": "118s"`, `"secretName": "keys"`, `"Europe/Berlin"`, `"cpu": "2"`, `"claimName": "old"`,
	} {
		if !strings.Contains(pod, want) {
			t.Errorf("the pod has no %s:\n%s", want, pod)
		}
	}
}
