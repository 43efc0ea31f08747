package test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"hinit/kubernetes/internal/cluster"
)

const driverName = "directories.hinit.test"

// driver is a CSI driver for one node. Each volume is a directory, whose path is the volume's handle.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer

	endpoint string

	mu    sync.Mutex
	flags []string // Mount flags of all mounts so far.
}

// startDriver starts the driver of a node and registers it with the kubelet, until the test ends.
func (b *testBed) startDriver() *driver {
	b.Helper()
	if b.WhyNoNodes != "" {
		b.Skip(b.WhyNoNodes)
	}
	dir := b.nodes[1].PluginsDir()
	d := &driver{endpoint: filepath.Join(dir, driverName+".driver")}
	for path, register := range map[string]func(*grpc.Server){
		d.endpoint: func(s *grpc.Server) { csi.RegisterIdentityServer(s, d); csi.RegisterNodeServer(s, d) },
		// The kubelet finds drivers by sockets with this name.
		filepath.Join(dir, driverName+".sock"): func(s *grpc.Server) { registration.RegisterRegistrationServer(s, d) },
	} {
		l, err := net.Listen("unix", path)
		if err != nil {
			b.Fatal(err)
		}
		server := grpc.NewServer()
		register(server)
		go func() { _ = server.Serve(l) }() // Serve returns after Stop.
		b.Cleanup(server.Stop)
	}
	b.eventually("the kubelet knows the driver", func() string {
		var node storagev1.CSINode
		if err := b.Get(b.Context(), "/apis/storage.k8s.io/v1/csinodes/"+b.nodes[1].Name, &node); err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driverName }) {
			return "the node has no such driver"
		}
		return ""
	})
	return d
}

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: driverName, Endpoint: d.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (d *driver) NotifyRegistrationStatus(context.Context, *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: driverName, VendorVersion: "1"}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node1"}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	flags := r.GetVolumeCapability().GetMount().GetMountFlags()
	d.mu.Lock()
	d.flags = append(d.flags, flags...)
	d.mu.Unlock()
	if err := os.MkdirAll(r.GetTargetPath(), 0o750); err != nil {
		return nil, err
	}
	if err := unix.Mount(r.GetVolumeId(), r.GetTargetPath(), "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	options := uintptr(unix.MS_REMOUNT | unix.MS_BIND)
	if slices.Contains(flags, "noexec") {
		options |= unix.MS_NOEXEC
	}
	return &csi.NodePublishVolumeResponse{}, unix.Mount("", r.GetTargetPath(), "", options, "")
}

func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	_ = unix.Unmount(r.GetTargetPath(), unix.MNT_DETACH) // Unmount fails if the kubelet calls a second time, which is allowed.
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.GetTargetPath())
}

// TestAVolumeOfADriver checks that agents work on a root-owned CSI volume that is mounted noexec.
// The kubelet makes it writable for the pod's group.
func TestAVolumeOfADriver(t *testing.T) {
	cluster.SkipIfShort(t)
	d := withServer(t).startDriver() // The driver must outlive the pod.
	b := withNode(t, "driver")
	b.volumes(0, corev1.ReadWriteOnce)
	dir, err := os.MkdirTemp("/run/volumes", "driver-") //nolint:usetesting // the directory is on a file system of the cluster
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	no, policy := false, storagev1.FileFSGroupPolicy
	b.apply(&storagev1.CSIDriver{
		TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver"}, ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: storagev1.CSIDriverSpec{AttachRequired: &no, FSGroupPolicy: &policy},
	}, &corev1.PersistentVolume{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}, ObjectMeta: metav1.ObjectMeta{Name: "driver"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: "local", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, MountOptions: []string{"noexec"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: dir}},
		},
	})
	t.Cleanup(func() {
		b.mustRun("delete", "persistentvolume", "driver", "--wait=false")
		b.mustRun("delete", "csidriver", driverName)
	})
	b.checkProfiles(func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"kubernetes.io/hostname": "node1"} })
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(d.flags, "noexec") {
		t.Errorf("the mount options are %q", d.flags)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || st.Gid != 10000 {
		t.Errorf("the group of the volume is %d, %v", st.Gid, err)
	}
}
