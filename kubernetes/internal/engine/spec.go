package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"hinit/sandbox"
	"hinit/sandbox/gate"
)

// checkSpec returns an error if a spec asks for something that a pod can't have or must not have.
func checkSpec(s *sandbox.Spec) error {
	const namespaces = "a namespace of the host or of another container"
	label := func(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }
	for _, rule := range []struct {
		kept bool
		what string
	}{
		{!s.Privileged && len(s.Devices) == 0, "a privileged container, or one with devices"},
		{s.PIDMode+s.UTSMode+s.UserNS+s.CgroupNS == "" && slices.Contains([]string{"", "private", "none"}, s.IPCMode), namespaces},
		{len(s.Ports) == 0, "a published port; a Service of the cluster does that"},
		{s.Restart == "" || s.Restart == "no", "a restart policy"},
		{len(s.DNS)+len(s.Hosts) == 0, "a name server or host of its own"},
		{len(s.Ulimits) == 0, "limits by --ulimit; the node sets them"},
		{len(validation.IsValidLabelValue(s.Network)) == 0 && s.Network != "host", "the network " + strconv.Quote(s.Network)},
		{len(s.Cmd) > 0 || len(s.Entrypoint) > 0, "the command of the image, which only the node knows; give a command"},
		{s.Image != "", "no image"},
		{s.Hostname == "" || label(s.Hostname), "the host name " + strconv.Quote(s.Hostname)},
		{label(s.Name), "the name " + strconv.Quote(s.Name) + "; take lower-case letters, digits and dashes"},
	} {
		if !rule.kept {
			return unsupported("a sandbox on a cluster can't have %s", rule.what)
		}
	}
	return nil
}

// buildPod returns the pod for a record. The pod has no scheduling gate, so it would start at once.
func (e *Engine) buildPod(ctx context.Context, r *record) (*corev1.Pod, error) {
	o, err := e.ownPod(ctx)
	if err != nil {
		return nil, err
	}
	tools := helperDir(r)
	mapped, err := e.haveUserNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	security, err := securityOf(&r.spec, mapped)
	if err != nil {
		return nil, err
	}
	note, err := json.Marshal(r.spec)
	if err != nil {
		return nil, err
	}
	argv := slices.Concat(r.spec.Entrypoint, r.spec.Cmd)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: ObjectName(r.name), Namespace: e.settings.Namespace, Labels: objectLabels(r),
			Annotations: map[string]string{annotationSpec: string(note), annotationCreated: r.created.UTC().Format(time.RFC3339Nano)},
		},
		Spec: e.podSpec(r, security, hostUsers(mapped)),
	}
	pod.Spec.InitContainers = []corev1.Container{e.helperContainer(o, r, tools, security)}
	pod.Spec.Containers = []corev1.Container{e.mainContainer(r, argv, security)}
	if class := cmp.Or(r.spec.Runtime, e.settings.Runtime); class != "" {
		pod.Spec.RuntimeClassName = &class
	}
	for _, secret := range e.settings.PullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	if pod.OwnerReferences, err = e.owner(ctx); err != nil {
		return nil, err
	}
	return pod, e.addMounts(pod, r, o)
}

func (e *Engine) podSpec(r *record, s security, hostUsers *bool) corev1.PodSpec {
	grace, seconds, no := int64(2), int64(60), false
	away := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}
	}
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &grace,
		Hostname: r.spec.Hostname, HostUsers: hostUsers,
		SecurityContext: &corev1.PodSecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}, SupplementalGroups: s.groups,
		},
		Tolerations: []corev1.Toleration{away("node.kubernetes.io/not-ready"), away("node.kubernetes.io/unreachable")},
		Volumes:     []corev1.Volume{{Name: "tools", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}
}

// helperContainer returns the init container that copies the helper program into the pod.
func (e *Engine) helperContainer(o *ownPodInfo, r *record, tools string, s security) corev1.Container {
	limits, requests := e.resources(&r.spec)
	return corev1.Container{
		Name: "helper", Image: o.image, ImagePullPolicy: corev1.PullPolicy(e.settings.PullPolicy), Command: []string{e.programPath, "install", tools},
		SecurityContext: s.helper, VolumeMounts: []corev1.VolumeMount{{Name: "tools", MountPath: tools}},
		Resources:                corev1.ResourceRequirements{Limits: limits, Requests: requests},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

func (e *Engine) mainContainer(r *record, argv []string, s security) corev1.Container {
	limits, requests := e.resources(&r.spec)
	return corev1.Container{
		Name: mainContainerName, Image: r.spec.Image, ImagePullPolicy: corev1.PullPolicy(e.settings.PullPolicy), Command: argv, WorkingDir: r.spec.Dir,
		Env: environment(r.spec.Env), SecurityContext: s.main, Resources: corev1.ResourceRequirements{Limits: limits, Requests: requests},
	}
}

// helperDir returns the directory of the helper in the container. If the record's spec has no mount for the helper, it adds
// one at a random path.
func helperDir(r *record) string {
	for _, m := range r.spec.Mounts {
		if m.Type == "volume" && m.Source == gateVolume {
			return m.Target
		}
	}
	at := gate.DirPrefix + strings.ToLower(rand.Text())
	r.spec.Mounts = append(slices.Clone(r.spec.Mounts), sandbox.Mount{Type: "volume", Source: gateVolume, Target: at, ReadOnly: true})
	return at
}

// renewHelperPath gives the helper a new random path. A process or a link that an earlier pod has left can't know this path.
func renewHelperPath(r *record) {
	old, at := helperDir(r), gate.DirPrefix+strings.ToLower(rand.Text())
	for i := range r.spec.Mounts {
		if r.spec.Mounts[i].Target == old {
			r.spec.Mounts[i].Target = at
		}
	}
	for i, word := range r.spec.Entrypoint {
		if rest, ok := strings.CutPrefix(word, old+"/"); ok {
			r.spec.Entrypoint[i] = at + "/" + rest
		}
	}
}

// objectLabels returns the labels of a container's objects. The cluster selects the objects with them.
func objectLabels(r *record) map[string]string {
	out := map[string]string{labelID: r.id, labelName: r.name, labelNetwork: cmp.Or(r.spec.Network, "default"), managedBy: "hinit-sandbox"}
	if home := r.spec.Labels[sandbox.LabelVolume]; len(validation.IsValidLabelValue(home)) == 0 {
		out[labelHome] = home
	}
	return out
}

func environment(list []string) []corev1.EnvVar {
	var out []corev1.EnvVar
	for _, e := range list {
		name, value, _ := strings.Cut(e, "=")
		// Double each $, because Kubernetes would replace $(NAME).
		out = append(out, corev1.EnvVar{Name: name, Value: strings.ReplaceAll(value, "$", "$$")})
	}
	return out
}

// security holds the security contexts of a pod's containers.
type security struct {
	main, helper *corev1.SecurityContext
	groups       []int64
}

// securityOf returns the security contexts for a spec. mapped is true if pods get user namespaces. Without them, securityOf
// refuses a spec whose user is root.
func securityOf(s *sandbox.Spec, mapped bool) (security, error) {
	no, yes := false, true
	out := security{
		main: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		helper: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	if s.ReadOnly {
		out.main.ReadOnlyRootFilesystem = &yes
	}
	for _, c := range s.CapAdd {
		out.main.Capabilities.Add = append(out.main.Capabilities.Add, corev1.Capability(strings.TrimPrefix(strings.ToUpper(c), "CAP_")))
	}
	for _, group := range s.Groups {
		gid, err := strconv.ParseInt(group, 10, 32)
		if err != nil || gid <= 0 {
			return out, unsupported("a sandbox on a cluster can't have the group %q", group)
		}
		out.groups = append(out.groups, gid)
	}
	helper := int64(65532)
	uid, gid, err := parseUser(s.User)
	switch {
	case err != nil:
		return out, err
	case uid > 0:
		out.main.RunAsUser, out.main.RunAsGroup, out.main.RunAsNonRoot = &uid, &gid, &yes
		helper = uid
	case !mapped:
		text := "root inside takes user namespaces, which the nodes don't give; unset HINIT_SANDBOX_ROOT, or set %sHOST_USERS=false if they do"
		return out, unsupported(text, prefix)
	case s.User != "":
		out.main.RunAsUser, out.main.RunAsGroup = &uid, &gid
	}
	out.helper.RunAsUser, out.helper.RunAsGroup = &helper, &helper
	return out, nil
}

// parseUser parses a user in docker's format, such as 1000:1000. It refuses a user's name, because only the image can resolve
// it.
func parseUser(user string) (uid, gid int64, err error) {
	name, group, has := strings.Cut(user, ":")
	if user == "" || user == "root" {
		return 0, 0, nil
	}
	if uid, err = strconv.ParseInt(name, 10, 32); err == nil && has {
		gid, err = strconv.ParseInt(group, 10, 32)
	} else {
		gid = uid
	}
	if err != nil || uid < 0 || gid < 0 {
		return 0, 0, unsupported("a sandbox on a cluster can't have the user %q: give numbers, as 1000:1000", user)
	}
	return uid, gid, nil
}

func hostUsers(mapped bool) *bool {
	if !mapped {
		return nil
	}
	no := false
	return &no
}

// resources returns the resource limits and requests of a container. It requests a disk space of 0. Without this request,
// Kubernetes would request as much as the limit, and nodes that do not report their disk space would take no sandbox.
func (e *Engine) resources(s *sandbox.Spec) (limits, requests corev1.ResourceList) {
	limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: e.settings.Disk}
	requests = corev1.ResourceList{corev1.ResourceCPU: e.settings.CPU, corev1.ResourceMemory: e.settings.Memory, corev1.ResourceEphemeralStorage: {}}
	if s.CPUs > 0 {
		limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(max(1, int64(s.CPUs*1000)), resource.DecimalSI)
	}
	if s.Memory > 0 {
		limits[corev1.ResourceMemory] = *resource.NewQuantity(s.Memory, resource.BinarySI)
	}
	for name, most := range limits {
		if asked := requests[name]; asked.Cmp(most) > 0 {
			requests[name] = most
		}
	}
	return limits, requests
}

// sharedMemory is the directory whose size --shm-size sets.
const sharedMemory = "/dev/shm"

// addMounts adds the mounts of a record to its pod. o is the pod of this process, whose claims the pod may mount.
func (e *Engine) addMounts(pod *corev1.Pod, r *record, o *ownPodInfo) error {
	c := &pod.Spec.Containers[0]
	volume := func(name string, source corev1.VolumeSource) {
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name }) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		}
	}
	claim := func(name string) (string, corev1.VolumeSource) {
		sum := sha256.Sum256([]byte(name))
		source := corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
		return "claim-" + hex.EncodeToString(sum[:6]), corev1.VolumeSource{PersistentVolumeClaim: &source}
	}
	all := slices.Clone(r.spec.Mounts)
	if r.spec.ShmSize > 0 {
		all = append(all, sandbox.Mount{Type: "tmpfs", Target: sharedMemory, Options: fmt.Sprintf("size=%d", r.spec.ShmSize)})
	}
	for i, m := range all {
		at := corev1.VolumeMount{MountPath: path.Clean(m.Target), ReadOnly: m.ReadOnly}
		switch {
		case m.Type == "tmpfs":
			size, readOnly, err := parseTmpfs(m.Options)
			if err != nil {
				return err
			}
			at.Name, at.ReadOnly = fmt.Sprintf("tmpfs-%d", i), readOnly
			volume(at.Name, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: size}})
		case m.Type == "volume" && m.Source == gateVolume:
			at.Name, at.ReadOnly = "tools", true
		case m.Type == "volume":
			name, source := claim(ObjectName(m.Source))
			at.Name = name
			volume(name, source)
		default:
			rest, ok := strings.CutPrefix(path.Clean(m.Source), claimsDir)
			name, below, _ := strings.Cut(rest, "/")
			if _, known := o.claims[name]; !ok || !known {
				return unsupported("bind source path does not exist: %s is on no volume of this pod, and no path of a node is mounted", m.Source)
			}
			id, source := claim(name)
			at.Name, at.SubPath = id, below
			volume(id, source)
			if !o.claims[name] {
				pod.Spec.Affinity = sameNode(o.pod)
			}
		}
		c.VolumeMounts = append(c.VolumeMounts, at)
	}
	return nil
}

// sameNode returns an affinity to the node of pod, for a claim that only one node can mount.
func sameNode(pod *corev1.Pod) *corev1.Affinity {
	term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels}}
	required := []corev1.PodAffinityTerm{term}
	return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
}

// parseTmpfs parses the mount options of a tmpfs. In a pod, only the size and ro have an effect.
func parseTmpfs(options string) (size *resource.Quantity, readOnly bool, err error) {
	for option := range strings.SplitSeq(options, ",") {
		name, value, _ := strings.Cut(option, "=")
		switch {
		case option == "ro":
			readOnly = true
		case name == "size" && strings.HasSuffix(value, "%"), name == "size" && value == "":
			return nil, false, unsupported("a sandbox on a cluster can't have a tmpfs with the size %q", value)
		case name == "size":
			unit := strings.ToUpper(strings.TrimLeft(value, "0123456789"))
			if unit != "" {
				unit += "i"
			}
			q, err := resource.ParseQuantity(strings.TrimRight(value, "kKmMgG") + strings.Replace(unit, "B", "", 1))
			if err != nil {
				return nil, false, unsupported("a sandbox on a cluster can't have a tmpfs with the size %q", value)
			}
			size = &q
		}
	}
	return size, readOnly, nil
}
