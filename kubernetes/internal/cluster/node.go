package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Node is a kubelet with its own containerd.
type Node struct {
	Name string

	cluster     *Cluster
	dir         string
	runtime     *process
	kubelet     *process
	kubeletArgs []string
}

const (
	runc    = "/usr/sbin/runc"
	plugins = "/usr/lib/cni"
)

func noNodesReason() string {
	switch {
	case os.Geteuid() != 0:
		return "a kubelet needs root"
	case !fileExists(runc) || !fileExists(plugins+"/bridge"):
		return "runc or the CNI plugins are missing; apt-get install runc containernetworking-plugins iproute2"
	case len(cgroupRoots()) == 0:
		return "there are no control groups below " + groupsRoot
	}
	return ""
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// containerdConfig is a template of containerd's configuration. DIR stands for the directory of the node, PAUSE for the pause
// image, and BIN for the directory of the programs.
const containerdConfig = `version = 3
root = 'DIR/root'
state = 'DIR/state'
temp = 'DIR/tmp'
imports = []
[grpc]
  address = 'DIR/containerd.sock'
[ttrpc]
  address = 'DIR/containerd.sock.ttrpc'
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.internal.v1.opt']
  path = 'DIR/opt'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = 'PAUSE'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_criu = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['` + plugins + `']
    conf_dir = 'DIR/cni'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = '` + runc + `'
      Root = 'DIR/runc'
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.` + MappedRuntime + `]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.` + MappedRuntime + `.options]
      BinaryName = 'BIN/runc'
      Root = 'DIR/mapped'
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.` + GvisorRuntime + `]
    runtime_type = 'io.containerd.runsc.v1'
    runtime_path = 'DIR/gvisor-shim'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.` + GvisorRuntime + `.options]
      TypeUrl = 'io.containerd.runsc.v1.options'
      ConfigPath = 'DIR/gvisor.toml'
`

// gvisorConfig is a template like containerdConfig, for the configuration of gVisor's shim.
const gvisorConfig = `binary_name = "BIN/runsc"
root = "DIR/gvisor"
`

// gvisorShim is a template like containerdConfig, for a script that starts gVisor's shim. Where oom_score_adj can't be
// lowered, the shim would give up. So the script makes it believe that it is in a user namespace.
const gvisorShim = `#!/bin/sh
echo 0 1 65536 > DIR/uid_map
mount --bind DIR/uid_map /proc/$$/uid_map
exec BIN/shim "$@"
`

// MappedRuntime is the RuntimeClass handler for pods with a user namespace. It has its own runc, because version 1.1 of
// Debian 12 lacks the id-mapped mounts that the kubelet requests.
const MappedRuntime = "mapped"

// HasMappedRuntime reports whether the nodes have the handler [MappedRuntime].
func (c *Cluster) HasMappedRuntime() bool { return fileExists(filepath.Join(c.Bin, "runc")) }

// GvisorRuntime is the RuntimeClass handler of gVisor, which gives each pod its own kernel.
const GvisorRuntime = "gvisor"

// HasGvisor reports whether the nodes have the handler [GvisorRuntime].
func (c *Cluster) HasGvisor() bool { return fileExists(filepath.Join(c.Bin, "runsc")) }

// kubeletConfig is a template like containerdConfig, with four more placeholders: NODE (the node's name), ADDRESS, PKI (the
// directory of the certificates) and GROUP (the parent control group).
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ADDRESS
port: 10250
readOnlyPort: 0
healthzPort: 0
tlsCertFile: PKI/NODE.crt
tlsPrivateKeyFile: PKI/NODE.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: PKI/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://DIR/containerd.sock
cgroupRoot: /GROUP/NODE
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
featureGates: {KubeletInUserNamespace: true}
enforceNodeAllocatable: []
seccompDefault: true
podLogsDir: DIR/podlogs
volumePluginDir: DIR/volumeplugins
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
syncFrequency: 5s
nodeLeaseDurationSeconds: 20
resolvConf: DIR/resolv.conf
`

const networkConfig = `{"cniVersion": "1.0.0", "name": "NODE", "plugins": [
 {"type": "bridge", "bridge": "pods-NODE", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "DIR/addresses", "ranges": [[{"subnet": "SUBNET"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

// StartNode starts the node with the number n, counted from 1. It loads the test images and waits until the node is Ready.
func (c *Cluster) StartNode(ctx context.Context, n int) (*Node, error) {
	node, err := c.startRuntime(ctx, n)
	if err != nil {
		return nil, err
	}
	node.kubeletArgs = []string{
		"--config", node.dir + "/kubelet.yaml", "--kubeconfig", filepath.Join(filepath.Dir(c.Config), node.Name+".kubeconfig"),
		"--root-dir", node.dir + "/kubelet", "--cert-dir", node.dir + "/certs", "--hostname-override", node.Name, "--node-ip", nodeAddress(n),
	}
	return node, node.StartKubelet(ctx)
}

func (c *Cluster) startRuntime(ctx context.Context, n int) (*Node, error) {
	node := &Node{Name: nodeName(n), cluster: c, dir: filepath.Join(c.dir, nodeName(n))}
	fill := strings.NewReplacer("DIR", node.dir, "BIN", c.Bin, "NODE", node.Name, "ADDRESS", nodeAddress(n), "PKI", filepath.Dir(c.Config), "GROUP", parentGroup, "PAUSE", pauseImage, "SUBNET", fmt.Sprintf("10.98.%d.0/24", n))
	for name, text := range map[string]string{
		"containerd.toml": containerdConfig, "gvisor.toml": gvisorConfig, "gvisor-shim": gvisorShim, "kubelet.yaml": kubeletConfig, "cni/10-pods.conflist": networkConfig, "resolv.conf": "nameserver 127.0.0.1\n",
	} {
		path := filepath.Join(node.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		// The file must be executable, because containerd executes one of these files.
		if err := os.WriteFile(path, []byte(fill.Replace(text)), 0o755); err != nil {
			return nil, err
		}
	}
	var err error
	if node.runtime, err = c.spawn("containerd-"+node.Name, "containerd", "--config", node.dir+"/containerd.toml"); err != nil {
		return nil, err
	}
	if err := c.waitFor(ctx, "containerd answers", node.runtime, func() bool { return node.runCtr(ctx, "version") == nil }); err != nil {
		return nil, err
	}
	if err := node.runCtr(ctx, "images", "import", "--local", os.Getenv(imageVar)); err != nil {
		return nil, err
	}
	for _, name := range demoImageNames {
		if err := node.runCtr(ctx, "images", "tag", "--local", "docker.io/library/"+builtImage, name); err != nil {
			return nil, err
		}
	}
	return node, nil
}

// StartKubelet starts the kubelet and waits until the node is Ready.
func (n *Node) StartKubelet(ctx context.Context) error {
	var err error
	if n.kubelet, err = n.cluster.spawn("kubelet-"+n.Name, "kubelet", n.kubeletArgs...); err != nil {
		return err
	}
	return n.cluster.waitFor(ctx, n.Name+" is Ready", n.kubelet, func() bool {
		var node corev1.Node
		if n.cluster.Get(ctx, "/api/v1/nodes/"+n.Name, &node) != nil {
			return false
		}
		for _, cond := range node.Status.Conditions {
			if cond.Type == corev1.NodeReady {
				return cond.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

// KillKubelet kills the kubelet. The node's containers keep running.
func (n *Node) KillKubelet() { n.kubelet.kill() }

// PluginsDir returns the directory in which the kubelet looks for plugins.
func (n *Node) PluginsDir() string { return filepath.Join(n.dir, "kubelet/plugins_registry") }

func (n *Node) runCtr(ctx context.Context, words ...string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(n.cluster.Bin, "ctr"), append([]string{"-a", n.dir + "/containerd.sock", "-n", "k8s.io"}, words...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr %s: %w: %s", strings.Join(words, " "), err, out)
	}
	return nil
}
