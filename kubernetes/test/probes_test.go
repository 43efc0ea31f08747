package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"hinit/kubernetes/internal/cluster"
	"hinit/kubernetes/internal/deploy"
)

func (b *testBed) createPod(name string, change func(*corev1.PodSpec)) {
	b.createPodWithValues(nil, name, change)
}

func (b *testBed) createPodWithValues(values map[string]any, name string, change func(*corev1.PodSpec)) {
	b.Helper()
	manifests, err := deploy.Render(deploy.WithDefaults(values))
	if err != nil {
		b.Fatal(err)
	}
	var set appsv1.StatefulSet
	for _, m := range manifests {
		switch m.File {
		case "pod.yaml":
			if err := yaml.UnmarshalStrict(m.Text, &set); err != nil {
				b.Fatal(err)
			}
		case "config.yaml":
			if r := b.runWithInput(string(m.Text), "apply", "-f", "-"); r.exitCode != 0 {
				b.Fatal(r)
			}
		}
	}
	template := set.Spec.Template
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels}, Spec: template.Spec}
	pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount = "", ""
	pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = name
	c := &pod.Spec.Containers[0]
	c.StartupProbe.PeriodSeconds, c.ReadinessProbe.PeriodSeconds, c.LivenessProbe.PeriodSeconds, c.LivenessProbe.FailureThreshold = 1, 1, 1, 3
	c.Resources.Requests = nil
	if change != nil {
		change(&pod.Spec)
	}
	b.apply(&corev1.PersistentVolumeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, pod)
}

// awaitNotReady waits until the pod has started and its log says why it is not Ready.
func (b *testBed) awaitNotReady(name, want string) {
	b.Helper()
	b.eventually(name+" says why it is not Ready", func() string {
		if output := b.failedProbes(name); !strings.Contains(output, want) {
			return "no " + want + " in " + output
		}
		return ""
	})
	if p := b.pod(name); isPodReady(p) || restarts(p) != 0 {
		b.Errorf("%s: Ready %v, %d restarts", name, isPodReady(p), restarts(p))
	}
}

// TestNotReadyWhereNothingCanWork checks that pods in which no agent can write are not Ready.
func TestNotReadyWhereNothingCanWork(t *testing.T) {
	b := withNode(t, "probes")
	b.mustRun("label", "--overwrite", "namespace", "probes", "pod-security.kubernetes.io/enforce=baseline") // A policy that permits uid 0.
	b.volumes(3, corev1.ReadWriteOnce)
	b.createPod("root-owned", func(s *corev1.PodSpec) { s.SecurityContext.FSGroup, s.SecurityContext.FSGroupChangePolicy = nil, nil })
	b.createPod("read-only", func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts[0].ReadOnly = true })
	b.createPod("no-capabilities", func(s *corev1.PodSpec) {
		root, no := int64(0), false
		s.SecurityContext.RunAsUser, s.SecurityContext.RunAsGroup, s.SecurityContext.RunAsNonRoot = &root, &root, &no
		s.SecurityContext.FSGroup, s.SecurityContext.FSGroupChangePolicy = nil, nil
	})
	for _, name := range []string{"root-owned", "read-only", "no-capabilities"} {
		b.awaitNotReady(name, "not ready: ")
	}
}

// TestAGatewayInTroubleRestartsNoPod checks that a gateway that crashes or hangs restarts no pod,
// beside a working gateway and alone.
func TestAGatewayInTroubleRestartsNoPod(t *testing.T) {
	b := withNode(t, "trouble")
	volume := b.volumes(1, corev1.ReadWriteOnce)[0]
	b.createPod("many", nil)
	b.awaitReady("many")
	for _, words := range [][]string{{"hermes", "profile", "create", "crashing"}, {"hermes", "profile", "create", "deaf"}} {
		if r := b.execInPod("many", words...); r.exitCode != 0 {
			t.Fatal(r)
		}
	}
	conf := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(volume, path, "agent.conf"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	conf("profiles/crashing", "crash_after=1ms\n")
	b.execInPod("many", "hinit", "start", "deaf")
	b.execInPod("many", "hinit", "start", "--no-wait", "crashing")
	for _, pid := range gatewayPIDs()["deaf"] {
		if process, err := os.FindProcess(pid); err == nil {
			_ = process.Signal(syscall.SIGSTOP) // A stopped process answers no client.
		}
	}
	b.consistently(8*time.Second, func() string {
		if p := b.pod("many"); !isPodReady(p) || restarts(p) != 0 {
			return fmt.Sprintf("with a gateway that works: Ready %v, %d restarts", isPodReady(p), restarts(p))
		}
		return ""
	})
	conf("", "crash_after=1ms\n")
	b.execInPod("many", "hinit", "stop", "deaf")
	b.execInPod("many", "hinit", "restart", "--no-wait", "default")
	b.eventually("not Ready", func() string {
		if isPodReady(b.pod("many")) {
			return "it is Ready"
		}
		return ""
	})
	b.consistently(8*time.Second, func() string {
		if n := restarts(b.pod("many")); n != 0 {
			return fmt.Sprintf("without a gateway that works: %d restarts", n)
		}
		return ""
	})
}

// TestPodsOfOtherShapes checks pods with unusual settings that some clusters require.
func TestPodsOfOtherShapes(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, "shapes")
	b.volumes(3, corev1.ReadWriteOnce)
	b.createPod("plain-run", func(s *corev1.PodSpec) {
		for i := range s.Volumes {
			if s.Volumes[i].EmptyDir != nil {
				s.Volumes[i].EmptyDir = &corev1.EmptyDirVolumeSource{}
			}
		}
	})
	b.createPod("high-uid", func(s *corev1.PodSpec) {
		uid := int64(1000650000)
		s.SecurityContext.RunAsUser, s.SecurityContext.RunAsGroup, s.SecurityContext.FSGroup = &uid, nil, &uid
	})
	b.createPod("one-namespace", func(s *corev1.PodSpec) {
		yes := true
		s.ShareProcessNamespace = &yes
		other := s.Containers[0].DeepCopy()
		other.Name = "other"
		other.VolumeMounts = nil
		for _, m := range s.Containers[0].VolumeMounts {
			m.Name = strings.Replace(m.Name, "data", "tmp", 1)
			if m.MountPath == "/run" {
				m.SubPath = "other" // A /run that only this container has.
			}
			if m.MountPath == "/opt/data" {
				m.SubPath = "data"
			}
			other.VolumeMounts = append(other.VolumeMounts, m)
		}
		s.Containers = append(s.Containers, *other)
	})
	for _, name := range []string{"plain-run", "high-uid", "one-namespace"} {
		b.awaitReady(name)
	}
	r := b.execInPod("plain-run", "sh", "-c", "ls -ld /run /run/hinit* /tmp/hinit* 2>/dev/null; hinit status")
	if r.exitCode != 0 || !strings.Contains(r.output, "/run/hinit") || strings.Contains(r.output, "abstract") || strings.Contains(r.output, "docker") {
		t.Error(r)
	}
	r = b.execInPod("high-uid", "sh", "-c", "id -u; hinit status; hinit doctor")
	if !strings.HasPrefix(r.output, "1000650000\n") || !strings.Contains(r.output, "gateway-default") || strings.Contains(r.output, "docker run") {
		t.Error(r)
	}
	answered := map[int]bool{}
	for _, container := range []string{"agents", "other"} {
		r := b.run("exec", "one-namespace", "-c", container, "--", "hinit", "status", "--json")
		var status struct{ Init struct{ PID int } }
		if err := json.Unmarshal([]byte(r.output), &status); err != nil {
			t.Error(err, r)
		}
		answered[status.Init.PID] = true
	}
	if len(answered) != 2 || answered[0] {
		t.Errorf("two inits of one pod have answered as %v", answered)
	}
}
