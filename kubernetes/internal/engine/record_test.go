package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"hinit/sandbox"
)

func pod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hermes-1", UID: "u", Labels: map[string]string{labelID: "i"}, Annotations: map[string]string{annotationSpec: `{}`}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: mainContainerName}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	change(p)
	return p
}

func setRunning(p *corev1.Pod) {
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: mainContainerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}}
	conditions(p, corev1.PodReady, corev1.ConditionTrue, corev1.ContainersReady, corev1.ConditionTrue)
}

func conditions(p *corev1.Pod, words ...any) {
	p.Status.Conditions = nil
	for i := 0; i < len(words); i += 2 {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: words[i].(corev1.PodConditionType), Status: words[i+1].(corev1.ConditionStatus)})
	}
}

func withExit(code int32, reason string) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodFailed
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: mainContainerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}}}
	}
}

// TestWhatThePodIsInIsSaidInWords checks that the state of a pod is translated to the state of a container, with the
// reason in words.
func TestWhatThePodIsInIsSaidInWords(t *testing.T) {
	now := metav1.Now()
	disruption := func(reason string) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: "because"}
	}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		state sandbox.State
		says  string
	}{
		"not started": {pod(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: startGate}} }), sandbox.Created, ""},
		"unschedulable": {pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"}}
		}), sandbox.Created, "no node takes the pod: 0/3 nodes"},
		"running": {pod(setRunning), sandbox.Running, ""},
		"node lost": {pod(func(p *corev1.Pod) {
			setRunning(p)
			conditions(p, corev1.PodReady, corev1.ConditionFalse, corev1.ContainersReady, corev1.ConditionTrue)
		}), sandbox.Dead, "the node n1, on which the pod hermes-1 ran, does not answer"},
		"deleted": {pod(func(p *corev1.Pod) { setRunning(p); p.DeletionTimestamp = &now }), sandbox.Removing, "the pod hermes-1 was deleted"},
		"drained": {pod(func(p *corev1.Pod) {
			setRunning(p)
			p.DeletionTimestamp = &now
			p.Status.Conditions = append(p.Status.Conditions, disruption("EvictionByEvictionAPI"))
		}), sandbox.Removing, "evicted from the node n1, which is being drained"},
		"preempted": {pod(func(p *corev1.Pod) {
			p.DeletionTimestamp = &now
			p.Status.Conditions = []corev1.PodCondition{disruption("PreemptionByScheduler")}
		}), sandbox.Removing, "made room on the node n1"},
		"tainted": {pod(func(p *corev1.Pod) {
			p.DeletionTimestamp = &now
			p.Status.Conditions = []corev1.PodCondition{disruption("DeletionByTaintManager")}
		}), sandbox.Removing, "taken off the node n1: because"},
		"out of memory": {pod(withExit(137, "OOMKilled")), sandbox.Exited, "ran out of memory"},
		"evicted by its node": {pod(func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory. "
		}), sandbox.Exited, "the node n1 evicted the pod hermes-1: The node was low on resource: memory."},
		"stopped": {pod(func(p *corev1.Pod) { withExit(137, "Error")(p); p.Status.Reason = "DeadlineExceeded" }), sandbox.Exited, "the sandbox was stopped"},
		"failed":  {pod(withExit(3, "Error")), sandbox.Exited, ""},
	} {
		r, ok := recordOfPod(c.pod)
		if !ok {
			t.Fatalf("%s: it is not read", name)
		}
		got := r.container()
		if got.State != c.state || !strings.Contains(got.Reason, c.says) || c.says == "" && got.Reason != "" && got.State != sandbox.Created {
			t.Errorf("%s: %s, %q", name, got.State, got.Reason)
		}
		if (got.State == sandbox.Running) == got.Started.IsZero() {
			t.Errorf("%s: started %v", name, got.Started)
		}
	}
}

// TestAStartThatIsNoUseFailsAtOnce checks that a start fails at once, not after two minutes, if for example the image
// can't be pulled.
func TestAStartThatIsNoUseFailsAtOnce(t *testing.T) {
	for reason, want := range map[string]error{
		"ErrImagePull": sandbox.ErrNoImage, "ImagePullBackOff": sandbox.ErrNoImage, "InvalidImageName": sandbox.ErrNoImage, "CreateContainerConfigError": sandbox.ErrRefused, "ContainerCreating": nil,
	} {
		_, err := waitReason(pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: mainContainerName, Image: "x", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
		}))
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: %v", reason, err)
		}
	}
}

// TestTwoPodsStartedInOneSecondDiffer checks that two pods get different start times if they start
// in the same second. Otherwise the check of one pod's mounts would count for the other.
func TestTwoPodsStartedInOneSecondDiffer(t *testing.T) {
	at := time.Unix(1000, 0)
	a, b := pod(func(p *corev1.Pod) { p.UID = "a" }), pod(func(p *corev1.Pod) { p.UID = "b" })
	if startTime(a, at).Equal(startTime(b, at)) || startTime(a, at).Sub(at) >= time.Second {
		t.Error(startTime(a, at), startTime(b, at))
	}
}

func TestSizesOfMemoryFileSystems(t *testing.T) {
	for options, want := range map[string]int64{"rw,size=512m": 512 << 20, "rw,exec,size=1g": 1 << 30, "size=64k": 64 << 10, "size=1000": 1000, "rw": 0} {
		size, _, err := parseTmpfs(options)
		if err != nil || size == nil && want != 0 || size != nil && size.Value() != want {
			t.Errorf("%s: %v, %v", options, size, err)
		}
	}
	for _, options := range []string{"size=50%", "size=", "size=x"} {
		if _, _, err := parseTmpfs(options); !errors.Is(err, sandbox.ErrRefused) {
			t.Errorf("%s: %v", options, err)
		}
	}
}

// TestNoPodCanHaveIt checks that the engine refuses a docker option that Kubernetes lacks, and
// names the option.
func TestNoPodCanHaveIt(t *testing.T) {
	right := sandbox.Spec{Name: "hermes-1", Image: "x", Cmd: []string{"sleep"}}
	if err := checkSpec(&right); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*sandbox.Spec){
		"privileged": func(s *sandbox.Spec) { s.Privileged = true }, "namespace": func(s *sandbox.Spec) { s.PIDMode = "host" }, "published port": func(s *sandbox.Spec) { s.Ports = []string{"80"} },
		"restart policy": func(s *sandbox.Spec) { s.Restart = "always" }, "name server": func(s *sandbox.Spec) { s.DNS = []string{"1.1.1.1"} }, "--ulimit": func(s *sandbox.Spec) { s.Ulimits = map[string]string{"core": "0"} },
		"network": func(s *sandbox.Spec) { s.Network = "container:x" }, "command of the image": func(s *sandbox.Spec) { s.Cmd = nil }, "the name": func(s *sandbox.Spec) { s.Name = "A_b" },
		"host name": func(s *sandbox.Spec) { s.Hostname = "a.b" },
	} {
		s := right
		if change(&s); !errors.Is(checkSpec(&s), sandbox.ErrRefused) || !strings.Contains(checkSpec(&s).Error(), want) {
			t.Errorf("%s: %v", want, checkSpec(&s))
		}
	}
}

// TestRootInsideTakesUsersOfItsOwn checks that the engine refuses a root user without user
// namespaces, because that user would be root on the node.
func TestRootInsideTakesUsersOfItsOwn(t *testing.T) {
	for _, user := range []string{"", "root", "0:0", "0"} {
		if _, err := securityOf(&sandbox.Spec{User: user}, false); !errors.Is(err, sandbox.ErrRefused) {
			t.Errorf("%q: %v", user, err)
		}
		if s, err := securityOf(&sandbox.Spec{User: user}, true); err != nil || *s.helper.RunAsUser == 0 {
			t.Errorf("%q with users of its own: %v", user, err)
		}
	}
	s, err := securityOf(&sandbox.Spec{User: "1000:1001"}, false)
	if err != nil || *s.main.RunAsUser != 1000 || *s.main.RunAsGroup != 1001 || !*s.main.RunAsNonRoot {
		t.Error(s.main, err)
	}
	if _, err := securityOf(&sandbox.Spec{User: "node"}, true); err == nil {
		t.Error("a name of a user was taken, and only the image knows it")
	}
}

// TestTheGateMovesWithEachPod checks that each pod of a sandbox has its helper in another
// directory. Otherwise a mount from the last pod could cover the helper in the next pod.
func TestTheGateMovesWithEachPod(t *testing.T) {
	r := &record{spec: sandbox.Spec{Mounts: []sandbox.Mount{{Type: "volume", Source: gateVolume, Target: "/.hinit-a"}, {Type: "tmpfs", Target: "/tmp"}}, Entrypoint: []string{"/.hinit-a/gate", "gate-init"}}}
	renewHelperPath(r)
	at := helperDir(r)
	if at == "/.hinit-a" || r.spec.Entrypoint[0] != at+"/gate" || r.spec.Mounts[1].Target != "/tmp" {
		t.Error(r.spec)
	}
}

// TestAContainerIsFoundByALongName checks that a container whose name is as long as an id is found by its name.
func TestAContainerIsFoundByALongName(t *testing.T) {
	name := strings.Repeat("n", idLength)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: ObjectName(name), Namespace: "sandboxes", Labels: map[string]string{labelID: strings.Repeat("a", idLength)},
		Annotations: map[string]string{annotationSpec: `{"Name":"` + name + `"}`},
	}}
	e := &Engine{settings: Settings{Namespace: "sandboxes"}, kind: "Pod", core: fake.NewClientset(pod)}
	for _, ref := range []string{name, strings.Repeat("a", idLength), strings.Repeat("a", 12)} {
		if r, err := e.findRecord(t.Context(), ref); err != nil || r.name != name {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
