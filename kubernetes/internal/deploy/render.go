package deploy

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"text/template"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

//go:embed source/*.yaml
var source embed.FS

// Components maps the name of each kustomize component to the chart values with the same effect.
func Components() map[string]map[string]any {
	out := map[string]map[string]any{"standby-without-lease": {"standby.enabled": true, "standby.lease": false}}
	for _, name := range []string{"web", "metrics", "standby", "lease", "sandboxes"} {
		out[name] = map[string]any{name + ".enabled": true}
	}
	return out
}

// baseOrder is the order of the files in the base. A file stands before the files that need it.
var baseOrder = []string{"account.yaml", "role.yaml", "binding.yaml", "config.yaml", "volume.yaml", "service.yaml", "network.yaml", "sandboxes-owner.yaml", "sandboxes-role.yaml", "sandboxes-binding.yaml", "sandboxes-closed.yaml", "sandboxes-open.yaml", "disruption.yaml", "pod.yaml", "monitor.yaml"}

// Manifest is one Kubernetes object as text.
type Manifest struct {
	File string // File name in source/.
	Text []byte // YAML text with comments.
}

// Render executes the chart's templates with the given values and returns the resulting objects. It provides the functions of
// Helm that the templates use.
func Render(values map[string]any) ([]Manifest, error) {
	funcs := template.FuncMap{
		"contains": func(part, text string) bool { return strings.Contains(text, part) },
		"fail":     func(text string) (string, error) { return "", errors.New(text) },
		"quote":    func(v any) string { return strconv.Quote(fmt.Sprint(v)) },
		"int64":    func(a int) int64 { return int64(a) },
		"add":      func(a, b int) int64 { return int64(a + b) },
		"sub":      func(a, b int) int64 { return int64(a - b) },
		"div":      func(a, b int) int64 { return int64(a / b) },
	}
	var out []Manifest
	for _, name := range baseOrder {
		text, err := fs.ReadFile(source, path.Join("source", name))
		if err != nil {
			return nil, err
		}
		t, err := template.New(name).Option("missingkey=error").Funcs(funcs).Parse(string(text))
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		if err := t.Execute(&b, map[string]any{"Values": values}); err != nil {
			return nil, err
		}
		if object := bytes.TrimSpace(b.Bytes()); len(object) > 0 {
			out = append(out, Manifest{name, append(object, '\n')})
		}
	}
	return out, nil
}

// patchTypes maps the files that a component may change to the Go types of their objects. The patch library needs the type to
// merge lists.
var patchTypes = map[string]any{
	"pod.yaml": appsv1.StatefulSet{}, "volume.yaml": corev1.PersistentVolumeClaim{}, "network.yaml": networkingv1.NetworkPolicy{},
	"disruption.yaml": policyv1.PodDisruptionBudget{}, "service.yaml": corev1.Service{}, "account.yaml": corev1.ServiceAccount{},
}

// mergePatch returns a strategic merge patch that turns the object from into the object to, or nil if they are equal. file
// selects the object's Go type in patchTypes.
func mergePatch(file string, from, to []byte) ([]byte, error) {
	old, err := yaml.YAMLToJSON(from)
	if err != nil {
		return nil, err
	}
	wanted, err := yaml.YAMLToJSON(to)
	if err != nil {
		return nil, err
	}
	diff, err := strategicpatch.CreateTwoWayMergePatch(old, wanted, patchTypes[file])
	if err != nil || string(diff) == "{}" {
		return nil, err
	}
	var object, change map[string]any
	if err := yaml.Unmarshal(from, &object); err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(diff, &change); err != nil {
		return nil, err
	}
	removeOrderDirectives(change)
	change["apiVersion"], change["kind"] = object["apiVersion"], object["kind"]
	metadata, _ := change["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["name"] = object["metadata"].(map[string]any)["name"]
	change["metadata"] = metadata
	return yaml.Marshal(change)
}

// removeOrderDirectives removes the directives about the order of lists from a patch, to make it shorter. Without them, the lists
// keep the order of the patches.
func removeOrderDirectives(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if strings.HasPrefix(key, "$setElementOrder/") {
				delete(v, key)
				continue
			}
			removeOrderDirectives(value)
		}
	case []any:
		for _, value := range v {
			removeOrderDirectives(value)
		}
	}
}
