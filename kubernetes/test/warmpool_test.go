package test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"hinit/kubernetes/internal/cluster"
	"hinit/kubernetes/test/agentsandbox"
)

// extensionKinds maps the kinds of agent-sandbox's extensions to the fields of their specs.
var extensionKinds = map[string]string{
	"sandboxtemplates": "podTemplate: {type: object, x-kubernetes-preserve-unknown-fields: true}, networkPolicyManagement: {type: string, enum: [Managed, Unmanaged], default: Managed}",
	"sandboxwarmpools": "replicas: {type: integer, minimum: 0, default: 1}, sandboxTemplateRef: {type: object, required: [name], properties: {name: {type: string}}}",
	"sandboxclaims": "warmPoolRef: {type: object, required: [name], properties: {name: {type: string}}}, " +
		"lifecycle: {type: object, properties: {shutdownTime: {type: string, format: date-time}, shutdownPolicy: {type: string, enum: [Delete, DeleteForeground, Retain], default: Retain}}}",
}

// definition returns the definition of a kind. The API server drops undefined fields.
func definition(plural, fields string) string {
	kind := map[string]string{"sandboxtemplates": "SandboxTemplate", "sandboxwarmpools": "SandboxWarmPool", "sandboxclaims": "SandboxClaim"}[plural]
	return strings.NewReplacer("PLURAL", plural, "KIND", kind, "FIELDS", fields).Replace(`
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: PLURAL.extensions.agents.x-k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, a stand-in for tests"}
spec:
  group: extensions.agents.x-k8s.io
  scope: Namespaced
  names: {kind: KIND, plural: PLURAL}
  versions:
  - name: v1beta1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec: {type: object, properties: {FIELDS}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`)
}

// extensions imitates the controllers of warm pools and claims.
type extensions struct {
	sandboxes                dynamic.NamespaceableResourceInterface
	templates, pools, claims dynamic.NamespaceableResourceInterface
}

func newExtensions(c *agentsandbox.Controller, objects dynamic.Interface) *extensions {
	of := func(plural string) dynamic.NamespaceableResourceInterface {
		return objects.Resource(schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1", Resource: plural})
	}
	return &extensions{sandboxes: c.Objects, templates: of("sandboxtemplates"), pools: of("sandboxwarmpools"), claims: of("sandboxclaims")}
}

func forEachObject(ctx context.Context, of dynamic.NamespaceableResourceInterface, do func(*unstructured.Unstructured)) {
	list, err := of.List(ctx, metav1.ListOptions{})
	if err != nil {
		return // After an error, the next round tries again.
	}
	for i := range list.Items {
		if list.Items[i].GetDeletionTimestamp() == nil {
			do(&list.Items[i])
		}
	}
}

// members returns the Sandboxes that a pool or a claim owns.
func (x *extensions) members(ctx context.Context, owner *unstructured.Unstructured) (out []*unstructured.Unstructured) {
	forEachObject(ctx, x.sandboxes, func(o *unstructured.Unstructured) {
		if c := metav1.GetControllerOf(o); c != nil && c.UID == owner.GetUID() {
			out = append(out, o)
		}
	})
	return out
}

func (x *extensions) all(ctx context.Context) {
	forEachObject(ctx, x.claims, func(o *unstructured.Unstructured) { x.claim(ctx, o) })
	forEachObject(ctx, x.pools, func(pool *unstructured.Unstructured) {
		has, waits := x.members(ctx, pool), int64(0)
		for _, o := range has {
			if isReady(o) {
				waits++
			}
		}
		replicas, _, _ := unstructured.NestedInt64(pool.Object, "spec", "replicas")
		for n := int64(len(has)); n < replicas; n++ {
			x.fromTemplate(ctx, pool, pool)
		}
		old, _, _ := unstructured.NestedInt64(pool.Object, "status", "readyReplicas")
		if waits != old {
			pool.Object["status"] = map[string]any{"replicas": int64(len(has)), "readyReplicas": waits}
			_, _ = x.pools.Namespace(pool.GetNamespace()).UpdateStatus(ctx, pool, metav1.UpdateOptions{}) // After an error, the next round tries again.
		}
	})
}

func isReady(o *unstructured.Unstructured) bool {
	return meta.IsStatusConditionTrue(agentsandbox.Conditions(o), "Ready")
}

// fromTemplate creates a Sandbox from a pool's template.
func (x *extensions) fromTemplate(ctx context.Context, pool, owner *unstructured.Unstructured) *unstructured.Unstructured {
	name, _, _ := unstructured.NestedString(pool.Object, "spec", "sandboxTemplateRef", "name")
	template, err := x.templates.Namespace(pool.GetNamespace()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	pod, _, _ := unstructured.NestedMap(template.Object, "spec", "podTemplate")
	if spec := pod["spec"].(map[string]any); spec["automountServiceAccountToken"] == nil {
		spec["automountServiceAccountToken"] = false
	}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "spec": map[string]any{"podTemplate": pod}}}
	o.SetName(pool.GetName() + "-" + strings.ToLower(rand.Text()[:5]))
	o.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
	made, err := x.sandboxes.Namespace(pool.GetNamespace()).Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		return nil
	}
	return made
}

// claim binds a claim to a Ready Sandbox of its pool, or creates one. It deletes an expired claim.
func (x *extensions) claim(ctx context.Context, claim *unstructured.Unstructured) {
	claims := x.claims.Namespace(claim.GetNamespace())
	text, _, _ := unstructured.NestedString(claim.Object, "spec", "lifecycle", "shutdownTime")
	if end, err := time.Parse(time.RFC3339, text); err == nil && time.Now().After(end) {
		_ = claims.Delete(ctx, claim.GetName(), metav1.DeleteOptions{}) // After an error, the next round tries again.
		return
	}
	if name, _, _ := unstructured.NestedString(claim.Object, "status", "sandbox", "name"); name != "" {
		return
	}
	name, _, _ := unstructured.NestedString(claim.Object, "spec", "warmPoolRef", "name")
	pool, err := x.pools.Namespace(claim.GetNamespace()).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return
	}
	has := x.members(ctx, claim)
	if len(has) == 0 {
		for _, o := range x.members(ctx, pool) {
			if !isReady(o) {
				continue
			}
			o.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(claim, claim.GroupVersionKind())})
			if taken, err := x.sandboxes.Namespace(claim.GetNamespace()).Update(ctx, o, metav1.UpdateOptions{}); err == nil {
				has = append(has, taken)
				break
			}
		}
	}
	if len(has) == 0 {
		if made := x.fromTemplate(ctx, pool, claim); made != nil {
			has = append(has, made)
		}
	}
	if len(has) > 0 {
		claim.Object["status"] = map[string]any{"sandbox": map[string]any{"name": has[0].GetName()}}
		_, _ = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}) // After an error, the next round tries again.
	}
}

// runWithoutFiles runs the command line with which the agent creates its container if
// container_persistent is false.
func (a *agentPod) runWithoutFiles(name string, more ...string) result {
	words := []string{
		"run", "-d", "--init", "--name", name, "--label", "hermes-agent=1", "--label", "hermes-task-id=" + name, "--label", "hermes-profile=default", "-w", "/root",
		"--cap-drop", "ALL", "--tmpfs", "/root:rw,exec,size=16m", "--tmpfs", "/workspace:rw,exec,size=16m", "--memory", "128m",
	}
	return a.docker(append(append(words, more...), "hinit-demo", "sleep", "infinity")...)
}

// TestAClaimTakesASandboxThatWaits checks that docker run without mounts gets a Sandbox from a warm
// pool, which must behave like a new one.
func TestAClaimTakesASandboxThatWaits(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withServer(t)
	b.startController(t, true)
	a := withSandboxes(t, "HINIT_SANDBOX_KUBERNETES_WARM=1", "HINIT_SANDBOX_KUBERNETES_EXPIRE=1m")
	began := time.Now()
	first := a.createdID(a.runWithoutFiles("hermes-00000001"))
	t.Logf("made in %v, with the trial of user namespaces", time.Since(began))
	waits := func() string {
		if n := a.mustRun("get", "sandboxwarmpools", "-o", "jsonpath={.items[*].status.readyReplicas}"); n != "1" {
			return "ready are " + n
		}
		return ""
	}
	a.eventually("a Sandbox waits", waits)
	if claims := a.mustRun("get", "sandboxclaims", "-o", "name"); claims != "" {
		t.Error("the first call had nothing to claim:", claims)
	}

	began = time.Now()
	id := a.createdID(a.runWithoutFiles("hermes-00000002"))
	t.Logf("claimed in %v", time.Since(began))
	const pod = "jsonpath={.items[*].metadata.name}"
	taken := a.mustRun("get", "pods", "-l", "hinit.dev/sandbox="+id, "-o", pod)
	if !strings.HasPrefix(taken, "hinit-sandbox-") || taken == objectName("hermes-00000002") {
		t.Fatal("it is not of the pool:", taken)
	}
	if r := a.shellIn(id, "id -u; pwd; echo mine > file; cat file"); r.output != "10000\n/root\nmine\n" {
		t.Error(r)
	}
	find := []string{"ps", "-a", "--filter", "label=hermes-agent=1", "--filter", "label=hermes-task-id=hermes-00000002", "--filter", "label=hermes-profile=default", "--format", "{{.ID}}\t{{.State}}", "--no-trunc"}
	if r := a.docker(find...); r.output != id+"\trunning\n" {
		t.Error(r)
	}
	if r := a.shellIn(first, "ls /root/file"); r.exitCode == 0 {
		t.Error("two sandboxes are one:", r)
	}
	if r := a.docker("stop", id); r.exitCode != 0 {
		t.Error(r)
	}
	if r := a.shellIn(id, "true"); r.exitCode != 1 || !strings.Contains(r.output, "is not running (the sandbox is suspended)") {
		t.Error(r)
	}
	if r := a.docker("start", id); r.exitCode != 0 {
		t.Error(r)
	}
	if r := a.shellIn(id, "echo again"); r.output != "again\n" {
		t.Error(r)
	}

	a.eventually("another Sandbox waits", waits)
	if r := a.runSandbox("hermes-00000003"); r.exitCode != 0 {
		t.Error(r)
	} else if claims := a.mustRun("get", "sandboxclaims", "-o", "jsonpath={.items[*].metadata.name}"); claims != objectName("hermes-00000002") {
		t.Error("a call with files of the agents has a claim:", claims)
	}
	for _, ref := range []string{first, id} {
		if r := a.docker("rm", "-f", ref); r.exitCode != 0 {
			t.Error(r)
		}
	}
	if claims := a.mustRun("get", "sandboxclaims", "-o", "name"); claims != "" {
		t.Error("a claim is left:", claims)
	}
	a.eventually("the pod is gone", func() string { return a.mustRun("get", "pods", "-o", "name", "--field-selector=metadata.name="+taken) })

	a.eventually("a third Sandbox waits", waits)
	a.createdID(a.runWithoutFiles("hermes-00000004"))
	if claims := a.mustRun("get", "sandboxclaims", "-o", "name"); claims == "" {
		t.Error("the last call has no claim")
	}
	a.mustRun("delete", "statefulset", "agents") // The service never comes back.
	a.mustRun("patch", "sandboxclaims", objectName("hermes-00000004"), "--type=merge", "-p", `{"spec": {"lifecycle": {"shutdownTime": "`+time.Now().UTC().Format(time.RFC3339)+`"}}}`)
	a.eventually("the claim has expired", func() string { return a.mustRun("get", "sandboxclaims", "-o", "name") })
	a.mustRun("delete", "configmap", "agents-sandboxes")
	a.eventually("nothing is left", func() string {
		return a.mustRun("get", "sandboxwarmpools,sandboxtemplates,sandboxes.agents.x-k8s.io", "-o", "name") + a.mustRun("get", "pods", "-l", "app.kubernetes.io/managed-by=hinit-sandbox", "-o", "name")
	})
}
