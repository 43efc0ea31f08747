package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hinit "hinit/client"
	"hinit/client/dial"
	"hinit/kubernetes/api/v1alpha1"
)

// editProfile changes the spec of a profile.
func (f *sim) editProfile(name string, change func(*v1alpha1.AgentProfile)) error {
	p := &v1alpha1.AgentProfile{}
	if err := f.api.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: name}, p); err != nil {
		return err
	}
	old := p.DeepCopy()
	change(p)
	return f.api.Patch(f.ctx, p, client.MergeFrom(old))
}

func (f *sim) profile(name string) *v1alpha1.AgentProfile {
	p := &v1alpha1.AgentProfile{}
	_ = f.api.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: name}, p)
	return p
}

// otherHosts returns the names of the pool's hosts, except for one.
func (f *sim) otherHosts(hosts int, except string) (names []string) {
	for i := range hosts {
		if name := fmt.Sprintf("%s-%d", f.pool, i); name != except {
			names = append(names, name)
		}
	}
	return names
}

// TestAProfileMovesWithItsData moves one profile by a pin and all profiles of a host by a drain.
// Their data must arrive.
func TestAProfileMovesWithItsData(t *testing.T) {
	const n = 12
	f := newSim(t, "mover", 3)
	f.controller(t, f.log)
	f.create(n)
	eventually(t, 2*time.Minute, "all profiles ready", func() string { return f.missing(n) })
	from := f.profile("p00000").Status.Host
	to := f.pool + "-0"
	if from == to {
		to = f.pool + "-1"
	}
	home := func(host string) string { return filepath.Join(f.kubelet.dir, host, "profiles", "p00000") }
	big := strings.Repeat("all that an agent has learnt\n", 400_000)
	if err := os.WriteFile(filepath.Join(home(from), "memories.db"), []byte(big), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("memories.db", filepath.Join(home(from), "latest")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Pin = to }); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the profile on "+to, func() string {
		if p := f.profile("p00000"); p.Status.Host != to || !p.Status.Ready || p.Status.Installed != p.Status.Assignment {
			return fmt.Sprintf("%+v", p.Status)
		}
		return f.missing(n)
	})
	t.Logf("a profile of %d MB has moved in %.1f s", len(big)>>20, time.Since(began).Seconds())
	text, err := os.ReadFile(filepath.Join(home(to), "latest"))
	info, err2 := os.Stat(filepath.Join(home(to), "memories.db"))
	if err != nil || err2 != nil || string(text) != big || info.Mode().Perm() != 0o640 {
		t.Errorf("the data has not come whole: %v %v %d bytes", err, err2, len(text))
	}
	eventually(t, time.Minute, "the old data removed", func() string {
		for _, dir := range []string{home(from), filepath.Join(f.kubelet.dir, from, ".hinit-fleet", "aside")} {
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				return fmt.Sprint(dir, " has ", left)
			}
		}
		return ""
	})
	f.checkLedger()

	f.edit(func(p *v1alpha1.AgentPool) { p.Spec.Drain = []string{f.pool + "-2"} })
	eventually(t, 2*time.Minute, "the host drained", func() string {
		for _, p := range f.profiles() {
			if p.Status.Host == f.pool+"-2" && p.Spec.Pin == "" {
				return p.Name + " is still there"
			}
		}
		return f.missing(n)
	})
	f.checkLedger()
}

// TestAGatewayStartedByHandDuringAMoveKeepsWhatItDid checks that no data is lost if an operator
// keeps starting the gateway while its profile should move.
func TestAGatewayStartedByHandDuringAMoveKeepsWhatItDid(t *testing.T) {
	f := newSim(t, "hand", 2)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	for range 6 {
		from, to := f.profile("p00000").Status.Host, f.pool+"-0"
		if from == to {
			to = f.pool + "-1"
		}
		f.kubelet.mu.Lock()
		init := dial.New(filepath.Join(f.kubelet.dir, from+".sock"))
		f.kubelet.mu.Unlock()
		if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Pin = to }); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			_, _ = init.Start(f.ctx, "gateway-p00000", hinit.WaitOptions{}) // The start fails while the profile moves.
			time.Sleep(100 * time.Millisecond)
		}
		eventually(t, time.Minute, "the profile on "+to, func() string {
			if p := f.profile("p00000"); p.Status.Host != to {
				return fmt.Sprintf("%+v", p.Status)
			}
			return f.missing(1)
		})
		f.checkLedger()
	}
}

// TestAGatewayStartedBeforeItsDataIsSetAsideKeepsWhatItDid starts the gateway between the host's
// check that it is down and the move of its data. The other host must not start it with older data.
func TestAGatewayStartedBeforeItsDataIsSetAsideKeepsWhatItDid(t *testing.T) {
	f := newSim(t, "behind", 2)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	from, to := f.profile("p00000").Status.Host, f.pool+"-0"
	if from == to {
		to = f.pool + "-1"
	}
	f.kubelet.mu.Lock()
	init := f.kubelet.running[from].init
	f.kubelet.mu.Unlock()
	init.mu.Lock()
	init.startOnSecondQuery = true
	init.mu.Unlock()
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Pin = to }); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the profile on "+to, func() string {
		if p := f.profile("p00000"); p.Status.Host != to {
			return fmt.Sprintf("%+v", p.Status)
		}
		return f.missing(1)
	})
	f.checkLedger()
	init.mu.Lock()
	defer init.mu.Unlock()
	if init.startOnSecondQuery {
		t.Error("nothing was started between the steps")
	}
}

// TestAMoveToAFullVolumeSaysSoAndGoesOn checks that the status names the full volume of the target,
// and that the move continues when it has space.
func TestAMoveToAFullVolumeSaysSoAndGoesOn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a volume that can be full needs root")
	}
	f := newSim(t, "full", 2)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	to := f.pool + "-0"
	if f.profile("p00000").Status.Host == to {
		to = f.pool + "-1"
	}
	eventually(t, time.Minute, "the other host on", func() string {
		if p := f.pod(to); p.Status.Phase != corev1.PodRunning {
			return string(p.Status.Phase)
		}
		return ""
	})
	f.kubelet.fillVolume(to)
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Pin = to }); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the reason told", func() string {
		if p := f.profile("p00000"); !strings.Contains(p.Status.Message, "no space left on device") {
			return fmt.Sprintf("%+v", p.Status)
		}
		return ""
	})
	f.kubelet.freeVolume(to)
	eventually(t, time.Minute, "the profile on "+to, func() string {
		if p := f.profile("p00000"); p.Status.Host != to {
			return fmt.Sprintf("%+v", p.Status)
		}
		return f.missing(1)
	})
	f.checkLedger()
}

// TestAMoveThatFailsFiveTimesGoesElsewhere blocks the profile's directory on one host. The gateway
// must run on its old host again, the status must name the reason, and the next move must go to
// another host.
func TestAMoveThatFailsFiveTimesGoesElsewhere(t *testing.T) {
	f := newSim(t, "fails", 3)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	from := f.profile("p00000").Status.Host
	others := f.otherHosts(3, from)
	eventually(t, time.Minute, "the other hosts on", func() string {
		for _, name := range others {
			if p := f.pod(name); p.Status.Phase != corev1.PodRunning {
				return fmt.Sprintf("%s is %q", name, p.Status.Phase)
			}
		}
		return ""
	})
	foreign := filepath.Join(f.kubelet.dir, others[0], "profiles", "p00000")
	if err := os.MkdirAll(filepath.Join(foreign, "of somebody"), 0o755); err != nil {
		t.Fatal(err)
	}
	pin := func(host string) {
		if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Pin = host }); err != nil {
			t.Fatal(err)
		}
	}
	pin(others[0])
	failures := int32(0)
	eventually(t, 3*time.Minute, "the move called off", func() string {
		p := f.profile("p00000")
		if p.Status.Move != nil {
			failures = max(failures, p.Status.Move.Failures)
		}
		if fail := p.Status.MoveFailure; fail == nil || fail.Attempts != 1 || fail.To != others[0] {
			return fmt.Sprintf("%+v", p.Status)
		}
		return f.missing(1)
	})
	p := f.profile("p00000")
	const why = "its directory profiles/p00000 exists, and is not of this object; move it away"
	if fail := p.Status.MoveFailure; p.Status.Host != from || failures < 5 || !strings.HasSuffix(fail.Message, why) || p.Status.Message != fail.Message {
		t.Errorf("after %d failures the status is %+v, %+v", failures, p.Status, fail)
	}
	old := p.DeepCopy()
	p.Status.MoveFailure.At = metav1.NewTime(time.Now().Add(-time.Hour)) // After an old failure, the next move begins at once.
	if err := f.api.Status().Patch(f.ctx, p, client.MergeFrom(old)); err != nil {
		t.Fatal(err)
	}
	pin(others[1])
	eventually(t, time.Minute, "the profile on "+others[1], func() string {
		if p := f.profile("p00000"); p.Status.Host != others[1] || p.Status.MoveFailure != nil {
			return fmt.Sprintf("%+v", p.Status)
		}
		return f.missing(1)
	})
	if left, err := os.ReadDir(foreign); err != nil || len(left) != 1 {
		t.Errorf("the directory of somebody else has %d files: %v", len(left), err)
	}
	f.checkLedger()
}

// TestAHostWritesOnlyAboutItsOwnProfiles checks that the API server refuses a host's writes to
// other hosts' profiles, although its role alone would permit them.
func TestAHostWritesOnlyAboutItsOwnProfiles(t *testing.T) {
	f := newSim(t, "owner", 2)
	f.controller(t, f.log)
	f.create(4)
	eventually(t, 2*time.Minute, "all profiles ready", func() string { return f.missing(4) })
	own := f.profile("p00000")
	other := f.pool + "-0"
	if own.Status.Host == other {
		other = f.pool + "-1"
	}
	as := func(host string) client.Client {
		token, err := f.kubelet.token(f.ctx, f.pod(host))
		if err != nil {
			t.Fatal(err)
		}
		c, err := f.clientWithToken(token)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	steal := func(c client.Client, change func(*v1alpha1.AgentProfile)) error {
		p := f.profile("p00000")
		old := p.DeepCopy()
		change(p)
		return c.Status().Patch(f.ctx, p, client.MergeFrom(old))
	}
	for _, c := range []struct {
		host   string
		change func(*v1alpha1.AgentProfile)
		says   string
	}{
		{other, func(p *v1alpha1.AgentProfile) { p.Status.Host = other }, "a host writes only about profiles that it has"},
		{other, func(p *v1alpha1.AgentProfile) { p.Status.Message = "ha" }, "a host writes only about profiles that it has"},
		{own.Status.Host, func(p *v1alpha1.AgentProfile) { p.Status.Host = other }, "only to the host that the move names"},
		{own.Status.Host, func(p *v1alpha1.AgentProfile) { p.Status.Host = "" }, "only to the host that the move names"},
		{own.Status.Host, func(p *v1alpha1.AgentProfile) {
			p.Status.Move = &v1alpha1.Move{To: other, Since: metav1.Now()}
		}, "only the controller begins a move"},
	} {
		if err := steal(as(c.host), c.change); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s is answered with %v", c.host, err)
		}
	}
	p := f.profile("p00000")
	old := p.DeepCopy()
	p.Spec.Priority = 7
	if err := as(own.Status.Host).Patch(f.ctx, p, client.MergeFrom(old)); err == nil || !strings.Contains(err.Error(), "a host does not change what a profile shall be") {
		t.Errorf("another spec is answered with %v", err)
	}
}

// TestAHostReadsNoSecretThatNoProfileNames checks that a host's token can read a Secret only while a profile of its
// pool names it.
func TestAHostReadsNoSecretThatNoProfileNames(t *testing.T) {
	f := newSim(t, "reader", 1)
	f.controller(t, f.log)
	for _, name := range []string{"database", "coder-keys"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string][]byte{"KEY": []byte("k")}}
		if err := f.api.Create(f.ctx, secret); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.api.Delete(f.ctx, secret) }()
	}
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	token, err := f.kubelet.token(f.ctx, f.pod(f.pool+"-0"))
	if err != nil {
		t.Fatal(err)
	}
	host, err := f.clientWithToken(token)
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) error {
		return host.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: name}, &corev1.Secret{})
	}
	for what, err := range map[string]error{
		"a Secret": read("database"), "a Secret that no profile names yet": read("coder-keys"), "all Secrets": host.List(f.ctx, &corev1.SecretList{}, client.InNamespace("default")),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("a host reads %s: %v", what, err)
		}
	}
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Env = []v1alpha1.SecretName{{Secret: "coder-keys"}} }); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the .env written", func() string {
		text, err := os.ReadFile(filepath.Join(f.kubelet.dir, f.pool+"-0", "profiles/p00000/.env"))
		if err != nil || !strings.Contains(string(text), "KEY=") {
			return fmt.Sprintf("%q %v", text, err)
		}
		return f.missing(1)
	})
	if err := read("database"); !apierrors.IsForbidden(err) {
		t.Errorf("a host reads a Secret that no profile names: %v", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "of-another", Namespace: "default"}}
	if err := host.Create(f.ctx, lease); err == nil || !strings.Contains(err.Error(), "only the pod of a host writes its Lease") {
		t.Errorf("another Lease is answered with %v", err)
	}
}

// TestAGatewayRunsOnWhileAConfigMapIsMissing checks that a gateway is not restarted because a ConfigMap that its
// profile names does not exist.
func TestAGatewayRunsOnWhileAConfigMapIsMissing(t *testing.T) {
	f := newSim(t, "missing", 1)
	f.controller(t, f.log)
	f.create(1)
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	starts := func() int {
		f.kubelet.ledger.mu.Lock()
		defer f.kubelet.ledger.mu.Unlock()
		return f.kubelet.ledger.starts
	}
	before := starts()
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) {
		p.Spec.Files = []v1alpha1.ProfileFile{{Path: "notes/a.md", ConfigMap: "late", Key: "a"}}
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the reason told", func() string {
		if p := f.profile("p00000"); !strings.Contains(p.Status.Message, `cannot read ConfigMap "late"`) {
			return fmt.Sprintf("%+v", p.Status)
		}
		return ""
	})
	time.Sleep(5 * time.Second) // Long enough for several tries of the host.
	if now := starts(); now != before {
		t.Errorf("%d starts while the ConfigMap was missing", now-before)
	}
	late := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "default"}, Data: map[string]string{"a": "now"}}
	if err := f.api.Create(f.ctx, late); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.api.Delete(f.ctx, late) }()
	eventually(t, 2*time.Minute, "the file written and the gateway restarted", func() string {
		text, err := os.ReadFile(filepath.Join(f.kubelet.dir, f.pool+"-0", "profiles/p00000/notes/a.md"))
		if err != nil || starts() != before+1 {
			return fmt.Sprintf("%q %v, %d starts", text, err, starts()-before)
		}
		return f.missing(1)
	})
}

// TestFilesOfAProfileComeFromConfigMapsAndSecrets checks that files from both are made, changed and removed with their
// sources, and removed with the profile.
func TestFilesOfAProfileComeFromConfigMapsAndSecrets(t *testing.T) {
	f := newSim(t, "filer", 1)
	f.controller(t, f.log)
	for _, o := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "souls", Namespace: "default"}, Data: map[string]string{"coder": "You code.", "git.md": "Use git."}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "keys", Namespace: "default"}, Data: map[string][]byte{"TOKEN": []byte("a \"b\" $c\n")}},
	} {
		if err := f.api.Create(f.ctx, o); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.api.Delete(f.ctx, o) }()
	}
	f.create(1, func(_ int, p *v1alpha1.AgentProfile) {
		p.Spec.Soul = &v1alpha1.ConfigMapKey{ConfigMap: "souls", Key: "coder"}
		p.Spec.Env = []v1alpha1.SecretName{{Secret: "keys"}}
		p.Spec.Files = []v1alpha1.ProfileFile{{Path: "notes/a.md", ConfigMap: "souls", Key: "git.md"}}
		p.Spec.Skills = []v1alpha1.Skill{{Name: "git", ConfigMap: "souls"}}
	})
	eventually(t, 2*time.Minute, "the profile ready", func() string { return f.missing(1) })
	home := filepath.Join(f.kubelet.dir, f.pool+"-0", "profiles", "p00000")
	is := func(file, want string) string {
		if text, err := os.ReadFile(filepath.Join(home, file)); err != nil || !strings.Contains(string(text), want) {
			return fmt.Sprintf("%s has %q (%v)", file, text, err)
		}
		return ""
	}
	for file, want := range map[string]string{"SOUL.md": "You code.", ".env": `TOKEN="a \"b\" \$c\n"`, "notes/a.md": "Use git.", "skills/git/git.md": "Use git."} {
		if problem := is(file, want); problem != "" {
			t.Error(problem)
		}
	}
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { p.Spec.Files = nil }); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the file removed", func() string {
		if _, err := os.Stat(filepath.Join(home, "notes/a.md")); err == nil {
			return "the file still exists"
		}
		return f.missing(1)
	})
	if err := f.editProfile("p00000", func(p *v1alpha1.AgentProfile) { no := false; p.Spec.Running = &no }); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the gateway stopped", func() string {
		if p := f.profile("p00000"); p.Status.Phase != v1alpha1.PhaseStopped {
			return string(p.Status.Phase)
		}
		return ""
	})
	if err := f.api.Delete(f.ctx, f.profile("p00000")); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the object gone and the data kept", func() string {
		kept, _ := filepath.Glob(filepath.Join(f.kubelet.dir, f.pool+"-0", ".hinit-fleet/retained/p00000.*/SOUL.md"))
		if len(f.profiles()) != 0 || len(kept) != 1 {
			return fmt.Sprint(len(f.profiles()), kept)
		}
		return ""
	})
}
