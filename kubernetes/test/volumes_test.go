package test

import (
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"hinit/kubernetes/internal/cluster"
)

// TestAVolumeThatExecutesNothing checks that agents work on a volume that is mounted noexec, nosuid
// and nodev, as on many clusters.
func TestAVolumeThatExecutesNothing(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, "noexec")
	dir := b.volumes(1, corev1.ReadWriteOnce)[0]
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // Ignore the error: the mount ends with the namespace.
	b.checkProfiles(func(*corev1.PodSpec) {})
}

// TestAPartOfAVolume checks that agents work with a data directory in a subPath.
func TestAPartOfAVolume(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, "part")
	b.volumes(1, corev1.ReadWriteOnce)
	b.checkProfiles(func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts[0].SubPath = "teams/one" })
}

// checkProfiles starts a pod and creates a profile in it. A second container of the pod must continue with
// the profile.
func (b *testBed) checkProfiles(change func(*corev1.PodSpec)) {
	b.Helper()
	b.createPod("one", change)
	pod := b.awaitReady("one")
	for _, words := range [][]string{{"hermes", "profile", "create", "coder"}, {"hermes", "-p", "coder", "gateway", "start"}} {
		if r := b.execInPod("one", words...); r.exitCode != 0 {
			b.Fatal(r)
		}
	}
	if err := unix.Kill(b.initOf("one"), unix.SIGKILL); err != nil {
		b.Fatal(err)
	}
	b.eventually("both gateways run again", func() string {
		if p := b.pod("one"); !isPodReady(p) || p.UID != pod.UID || restarts(p) != 1 {
			return p.Status.String()
		}
		if has := gatewayPIDs(); len(has["default"]) != 1 || len(has["coder"]) != 1 {
			return "a gateway is missing"
		}
		return ""
	})
}
