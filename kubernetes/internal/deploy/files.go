package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	generatedHead = "# Made from kubernetes/internal/deploy by go generate. Do not edit.\n"
	namespace     = generatedHead + `# Pods that could do more than the agents need are refused here.
apiVersion: v1
kind: Namespace
metadata:
  name: agents
  labels:
    pod-security.kubernetes.io/enforce: restricted
    pod-security.kubernetes.io/warn: restricted
`
)

// Files returns the generated files of kubernetes/deploy, by their path below that directory.
func Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	base, err := Render(WithDefaults(nil))
	if err != nil {
		return nil, err
	}
	kustomization := []byte(generatedHead + "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: agents\nresources:\n- namespace.yaml\n")
	files["base/namespace.yaml"] = []byte(namespace)
	for _, m := range base {
		files["base/"+m.File] = append([]byte(generatedHead), m.Text...)
		kustomization = append(kustomization, "- "+m.File+"\n"...)
	}
	files["base/kustomization.yaml"] = kustomization
	for name, values := range Components() {
		if err := addComponent(files, "components/"+name, base, values); err != nil {
			return nil, fmt.Errorf("component %s: %w", name, err)
		}
	}
	return files, makeChart(files)
}

// addComponent adds the files of the kustomize component in dir: patches for objects of the base, and new objects. The
// component changes the base in the same way as the given values change the chart.
func addComponent(files map[string][]byte, dir string, base []Manifest, values map[string]any) error {
	with, err := Render(WithDefaults(values))
	if err != nil {
		return err
	}
	var resources, patches []string
	for _, m := range with {
		i := slices.IndexFunc(base, func(b Manifest) bool { return b.File == m.File })
		if i < 0 {
			files[path.Join(dir, m.File)] = append([]byte(generatedHead), m.Text...)
			resources = append(resources, m.File)
			continue
		}
		if bytes.Equal(base[i].Text, m.Text) {
			continue
		}
		diff, err := mergePatch(m.File, base[i].Text, m.Text)
		if err != nil {
			return err
		}
		if diff != nil {
			files[path.Join(dir, m.File)] = append([]byte(generatedHead), diff...)
			patches = append(patches, m.File)
		}
	}
	text := generatedHead + "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
	if len(resources) > 0 {
		text += "namespace: agents\nresources:\n- " + strings.Join(resources, "\n- ") + "\n"
	}
	if len(patches) > 0 {
		text += "patches:\n- path: " + strings.Join(patches, "\n- path: ") + "\n"
	}
	files[path.Join(dir, "kustomization.yaml")] = []byte(text)
	return nil
}

func makeChart(files map[string][]byte) error {
	files["chart/Chart.yaml"] = []byte(generatedHead + `apiVersion: v2
name: hinit-agents
description: Agents under hinit, one pod with a volume
type: application
version: 0.1.0
`)
	names, err := fs.Glob(source, "source/*.yaml")
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := fs.ReadFile(source, name)
		if err != nil {
			return err
		}
		files["chart/templates/"+path.Base(name)] = text
	}
	text, err := schema()
	if err != nil {
		return err
	}
	files["chart/values.schema.json"] = append(text, '\n')
	var b bytes.Buffer
	b.WriteString(generatedHead)
	if err := writeValues(&b); err != nil {
		return err
	}
	files["chart/values.yaml"] = b.Bytes()
	return nil
}

// writeValues writes values.yaml. It contains each value with its default, and its documentation as a comment.
func writeValues(b *bytes.Buffer) error {
	group := ""
	for _, v := range Values() {
		text, err := json.Marshal(v.Default)
		if err != nil {
			return err
		}
		top, rest, deeper := strings.Cut(v.Path, ".")
		indent := ""
		if deeper {
			if group != top {
				fmt.Fprintf(b, "%s:\n", top)
			}
			indent, group = "  ", top
		} else {
			rest = top
		}
		fmt.Fprintf(b, "%s# %s\n%s%s: %s\n", indent, v.Doc, indent, rest, text)
	}
	var check map[string]any
	return yaml.UnmarshalStrict(b.Bytes(), &check)
}

// SortedPaths returns the paths of files, sorted.
func SortedPaths(files map[string][]byte) []string { return slices.Sorted(maps.Keys(files)) }
