package fleet

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

func manifest(kind, name, spec string) string {
	return fmt.Sprintf("apiVersion: agents.hinit.dev/v1alpha1\nkind: %s\nmetadata: {name: %q, namespace: default}\nspec: %s\n", kind, name, spec)
}

func poolManifest(spec string) string    { return manifest("AgentPool", "pool", spec) }
func profileManifest(spec string) string { return manifest("AgentProfile", "coder", spec) }

// invalidManifests lists invalid manifests, each with a text that the API server's error must contain.
var invalidManifests = []struct{ text, says string }{
	{poolManifest(`{hosts: {min: 1, max: 3}}`), "spec.image: Required value"},
	{poolManifest(`{image: "", hosts: {min: 1, max: 3}}`), "spec.image in body should be at least 1 chars long"},
	{poolManifest(`{image: "a b", hosts: {min: 1, max: 3}}`), "an image has no white space"},
	{poolManifest(`{image: a}`), "spec.hosts: Required value"},
	{poolManifest(`{image: a, hosts: {min: 4, max: 3}}`), "hosts.min is at most hosts.max"},
	{poolManifest(`{image: a, hosts: {min: -1, max: 3}}`), "spec.hosts.min in body should be greater than or equal to 0"},
	{poolManifest(`{image: a, hosts: {min: 0, max: 0}}`), "spec.hosts.max in body should be greater than or equal to 1"},
	{poolManifest(`{image: a, hosts: {min: 0, max: 1001}}`), "spec.hosts.max in body should be less than or equal to 1000"},
	{poolManifest(`{image: a, hosts: {min: 1}}`), "spec.hosts.max: Required value"},
	{poolManifest(`{image: a, hosts: {min: 1, max: many}}`), "spec.hosts.max in body must be of type integer"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, resources: {memory: 1Mi}}`), "memory is from 64Mi to 64Ti"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, resources: {memory: 7Ei}}`), "memory is from 64Mi to 64Ti"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, resources: {memory: lots}}`), "spec.resources.memory"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, resources: {cpu: 1m}}`), "cpu is at least 10m"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, volume: {size: 1Ki}}`), "size is at least 16Mi"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, volume: {storageClassName: Fast_Disk}}`), "spec.volume.storageClassName in body should match"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, isolation: full}`), `Unsupported value: "full": supported values: "none", "files"`},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, memoryBound: 120}`), "spec.memoryBound in body should be less than or equal to 100"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, profileMemory: "0"}`), "profileMemory is from 1Mi to 1Ti"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, profileMemory: 7Ei}`), "profileMemory is from 1Mi to 1Ti"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, topologyKey: "a/b/c"}`), "topologyKey is a key of a node label"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, drain: [pool]}`), "spec.drain[0] in body should match"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, drain: [pool-0, pool-0]}`), "Duplicate value"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, rollout: {maxUnavailable: 0}}`), "spec.rollout.maxUnavailable in body should be greater than or equal to 1"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, rollout: {idleSeconds: 0}}`), "spec.rollout.idleSeconds in body should be greater than or equal to 1"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, env: {"1A": x}}`), "a variable has letters, digits and _ and no digit first"},
	{manifest("AgentPool", strings.Repeat("p", 41), `{image: a, hosts: {min: 1, max: 1}}`), "the name of a pool has at most 40 characters"},
	{manifest("AgentPool", "0pool", `{image: a, hosts: {min: 1, max: 1}}`), "the name of a pool has a letter first"},
	{poolManifest(`{image: a, hosts: {min: 1, max: 1}, network: {apiServer: 10.0.0.1}}`), "apiServer is an address with the length of its prefix"},
	{profileManifest(`{}`), "spec.pool: Required value"},
	{profileManifest(`{pool: ""}`), "spec.pool in body should be at least 1 chars long"},
	{profileManifest(`{pool: pool, running: perhaps}`), "spec.running in body must be of type boolean"},
	{profileManifest(`{pool: pool, soul: {configMap: souls}}`), "spec.soul.key: Required value"},
	{profileManifest(`{pool: pool, soul: {configMap: Souls, key: a}}`), "spec.soul.configMap in body should match"},
	{profileManifest(`{pool: pool, env: [{secret: "a/b"}]}`), "spec.env[0].secret in body should match"},
	{profileManifest(`{pool: pool, files: [{path: /etc/passwd, configMap: a, key: b}]}`), "path is relative to the home of the profile"},
	{profileManifest(`{pool: pool, files: [{path: notes/../../other/SOUL.md, configMap: a, key: b}]}`), "path is relative to the home of the profile"},
	{profileManifest(`{pool: pool, files: [{path: SOUL.md, configMap: a, key: b}]}`), "SOUL.md, config.yaml and .env have fields of their own"},
	{profileManifest(`{pool: pool, files: [{path: a, configMap: a, secret: b, key: c}]}`), "a file comes from a configMap or from a secret"},
	{profileManifest(`{pool: pool, files: [{path: a, key: c}]}`), "a file comes from a configMap or from a secret"},
	{profileManifest(`{pool: pool, files: [{path: a, configMap: a, key: c}, {path: a, configMap: b, key: c}]}`), "Duplicate value"},
	{profileManifest(`{pool: pool, skills: [{name: "..", configMap: a}]}`), "spec.skills[0].name in body should match"},
	{profileManifest(`{pool: pool, memory: 2Ti}`), "memory is from 1Mi to 1Ti"},
	{profileManifest(`{pool: pool, memory: much}`), "spec.memory"},
	{profileManifest(`{pool: pool, priority: 5000}`), "spec.priority in body should be less than or equal to 1000"},
	{profileManifest(`{pool: pool, placement: alone}`), `Unsupported value: "alone": supported values: "packed", "pod"`},
	{profileManifest(`{pool: pool, placement: ""}`), `Unsupported value: "": supported values: "packed", "pod"`},
	{profileManifest(`{pool: pool, placement: [pod]}`), "spec.placement in body must be of type string"},
	{profileManifest(`{pool: pool, placement: pod, pin: pool-0}`), "pin is for packed profiles: placement pod gives a pod of its own"},
	{profileManifest(`{pool: pool, pin: other-0}`), "pin names a host of the pool"},
	{profileManifest(`{pool: pool, pin: pool-01}`), "spec.pin in body should match"},
	{profileManifest(`{pool: pool, onDelete: Keep}`), `Unsupported value: "Keep": supported values: "Retain", "Delete"`},
	{profileManifest(`{pool: pool, recover: {lostHost: pool-0}}`), "recover needs an archive, or empty: true, and not both"},
	{profileManifest(`{pool: pool, recover: {lostHost: pool-0, empty: true, archive: a.tar}}`), "recover needs an archive, or empty: true, and not both"},
	{profileManifest(`{pool: pool, recover: {lostHost: other-0, empty: true}}`), "recover.lostHost names a host of the pool"},
	{manifest("AgentProfile", "default", `{pool: pool}`), "the agent keeps the names default, hermes"},
	{manifest("AgentProfile", "a.b", `{pool: pool}`), "the name of a profile has at most 63 letters, digits and -"},
	{profileManifest(`{pool: pool, colour: red}`), `unknown field "spec.colour"`},
}

// TestWrongManifestsAreRefusedWithASentence checks that the API server refuses each invalid
// manifest with a helpful message.
func TestWrongManifestsAreRefusedWithASentence(t *testing.T) {
	s := withServer(t)
	for _, w := range invalidManifests {
		err := s.create(t, w.text)
		if err == nil || !strings.Contains(err.Error(), w.says) {
			t.Errorf("%s\nis answered with %v\nand not with %q", w.text, err, w.says)
		}
	}
	if len(invalidManifests) < 40 {
		t.Errorf("only %d manifests", len(invalidManifests))
	}
}

// TestRightManifestsAreTaken checks that the API server accepts valid manifests that differ little
// from the invalid ones.
func TestRightManifestsAreTaken(t *testing.T) {
	s := withServer(t)
	for _, text := range []string{
		poolManifest(`{image: a, hosts: {min: 1, max: 3}, resources: {memory: 1Gi, cpu: "1"}, drain: [pool-2], env: {A_1: x}, topologyKey: topology.kubernetes.io/zone}`),
		profileManifest(`{pool: pool, soul: {configMap: souls, key: coder}, env: [{secret: keys}], files: [{path: notes/a.md, configMap: a, key: b}], skills: [{name: git, configMap: a}], memory: 64Mi, placement: packed, pin: pool-0}`),
		manifest("AgentProfile", "alone", `{pool: pool, placement: pod, recover: {lostHost: pool-alone-0a1b2c3d-0, empty: true}}`),
		manifest("AgentProfile", "other", `{pool: pool, recover: {lostHost: pool-0, archive: other.tar}}`),
	} {
		if err := s.create(t, text, client.DryRunAll); err != nil {
			t.Errorf("%s\nis answered with %v", text, err)
		}
	}
	if err := s.create(t, profileManifest(`{pool: pool}`)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Kubectl(context.Background(), "delete", "agentprofile", "coder").Run() }()
	out, err := s.Kubectl(context.Background(), "patch", "agentprofile", "coder", "--type=merge", "-p", `{"spec": {"pool": "other"}}`).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the pool of a profile can't change") {
		t.Errorf("another pool is answered with %v %s", err, out)
	}
}

// create creates an object from YAML, as kubectl apply --validate=strict does.
func (s *server) create(t *testing.T, text string, more ...client.CreateOption) error {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), u); err != nil {
		t.Fatal(err, text)
	}
	return client.WithFieldValidation(s.api, "Strict").Create(context.Background(), u, more...)
}
