// Package pool generates the Kubernetes objects of an AgentPool: a StatefulSet, a Service, a NetworkPolicy, a
// PodDisruptionBudget and the configuration of hinit. It takes the pod from package deploy, and adds a container for the host
// program. Its functions are pure, and it owns no goroutine.
package pool

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/deploy"
)

const (
	// templateVar is an environment variable of the host's container. Its value is the checksum of the pod template without
	// the image. An annotation can't hold the checksum, because agent-sandbox copies the annotations of a new template to the
	// old pod.
	templateVar = "HINIT_FLEET_TEMPLATE"
	// ReplacedAnnotation holds the ID of the container that was running when the controller last changed the pod's image. The
	// replacement is complete when another container runs.
	ReplacedAnnotation = v1alpha1.Group + "/replaced"
	// CertificateAnnotation is an annotation of a host's Lease, with the SHA-256 of the host's certificate.
	CertificateAnnotation = v1alpha1.Group + "/certificate"
	// CredentialsDir is the directory with the token of a host.
	CredentialsDir = "/run/secrets/hinit-fleet"
	// MovePort is the TCP port on which a host listens while it offers a profile to another host.
	MovePort = 7843
	// HostProgram is the path of hinit-fleet in the image.
	HostProgram = "/usr/local/bin/hinit-fleet"

	// runtimeDir is the path at which the host's container mounts the /run directory of the agents' container. hinit's socket
	// is in this directory.
	runtimeDir         = "/run/agents"
	dataVolume         = "data"
	gracePeriodSeconds = 30
	megabyte           = 1 << 20
)

// ServiceAccountName returns the name of the ServiceAccount of a pool's hosts, and of its Role.
func ServiceAccountName(pool string) string { return "hinit-fleet-host." + pool }

// LeaseName returns the name of the Lease of a host. An admission policy lets a pod write only the Lease with its own name.
func LeaseName(host string) string { return "hinit-fleet." + host }

// Objects returns the objects of a pool with the given number of hosts, and the checksum of the pod template.
func Objects(p *v1alpha1.AgentPool, hosts int) (objects []*unstructured.Unstructured, template string, err error) {
	values := deploy.WithDefaults(valuesOf(p))
	manifests, err := deploy.Render(values)
	if err != nil {
		return nil, "", fmt.Errorf("cannot make the objects of pool %q: %w", p.Name, err)
	}
	for _, m := range manifests {
		u := &unstructured.Unstructured{}
		switch m.File {
		case "service.yaml", "config.yaml":
			err = yaml.Unmarshal(m.Text, u)
		case "disruption.yaml":
			u, err = disruptionBudget(m.Text)
		case "network.yaml":
			u, err = hostNetworkPolicy(p, m.Text)
		case "pod.yaml":
			u, template, err = statefulSet(p, m.Text, hosts)
		default:
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("cannot make %s of pool %q: %w", m.File, p.Name, err)
		}
		objects = append(objects, ownedBy(p, u))
	}
	return objects, template, nil
}

// ownedBy puts an object into the pool's namespace, labels it, and makes the pool its owner.
func ownedBy(p *v1alpha1.AgentPool, u *unstructured.Unstructured) *unstructured.Unstructured {
	u.SetNamespace(p.Namespace)
	labels := u.GetLabels()
	labels[v1alpha1.PoolLabel] = p.Name
	u.SetLabels(labels)
	u.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(p, v1alpha1.GroupVersion.WithKind("AgentPool"))})
	return u
}

// disruptionBudget returns the PodDisruptionBudget of the hosts. It excludes the pods of single profiles: a budget can't
// count pods of Sandboxes, and a single pod needs no budget.
func disruptionBudget(text []byte) (*unstructured.Unstructured, error) {
	d := &policyv1.PodDisruptionBudget{}
	if err := yaml.UnmarshalStrict(text, d); err != nil {
		return nil, err
	}
	d.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: v1alpha1.ProfileLabel, Operator: metav1.LabelSelectorOpDoesNotExist}}
	return toUnstructured(d)
}

// valuesOf returns the values for package deploy that are derived from the spec of a pool.
func valuesOf(p *v1alpha1.AgentPool) map[string]any {
	config, drain := "", 0
	if p.Spec.Isolation == "files" {
		config = "isolation: files\n"
	}
	if p.Spec.Rollout.WhenIdle {
		drain = int(p.Spec.Rollout.IdleSeconds)
	}
	memory := p.Spec.Resources.Memory.String()
	return map[string]any{
		"name": p.Name, "image": p.Spec.Image, "args": []any{"sleep", "infinity"}, "stopSeconds": gracePeriodSeconds, "drainSeconds": drain,
		"config": config, "cpu.request": p.Spec.Resources.CPU.String(), "memory.request": memory, "memory.limit": memory,
		"networkPolicy.enabled": p.Spec.Network.Policy == nil || *p.Spec.Network.Policy,
	}
}

// statefulSet returns the StatefulSet of the hosts and the checksum of its pod template.
func statefulSet(p *v1alpha1.AgentPool, text []byte, hosts int) (*unstructured.Unstructured, string, error) {
	set, sum, err := hostTemplate(p, text)
	if err != nil {
		return nil, "", err
	}
	replicas := int32(hosts)
	set.Spec.Replicas, set.Spec.PodManagementPolicy = &replicas, appsv1.ParallelPodManagement
	set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType, WhenScaled: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	}
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{dataClaim(p)}
	o, err := toUnstructured(set)
	return o, sum, err
}

// hostTemplate converts the StatefulSet of package deploy, which is for one pod, to a StatefulSet for the hosts of the pool,
// without the data volume. sum is the checksum of the pod template without the image.
func hostTemplate(p *v1alpha1.AgentPool, text []byte) (set *appsv1.StatefulSet, sum string, err error) {
	set = &appsv1.StatefulSet{}
	if err := yaml.UnmarshalStrict(text, set); err != nil {
		return nil, "", err
	}
	// The StatefulSet must not replace the pods, because the controller does.
	set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	pod := &set.Spec.Template
	pod.Labels[v1alpha1.PoolLabel] = p.Name
	pod.Spec.ServiceAccountName = ServiceAccountName(p.Name)
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: p.Spec.TopologyKey, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.PoolLabel: p.Name}},
	}}
	pod.Spec.Volumes = append(slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == dataVolume }), tokenVolume())
	adaptAgents(&pod.Spec.Containers[0], p)
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, hostContainer(&pod.Spec.Containers[0], p))
	bare := pod.DeepCopy()
	SetImage(&bare.Spec, "")
	all, err := json.Marshal(bare)
	if err != nil {
		return nil, "", err
	}
	h := sha256.Sum256(all)
	sum = hex.EncodeToString(h[:])[:16]
	fleet := &pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
	fleet.Env = append(fleet.Env, corev1.EnvVar{Name: templateVar, Value: sum})
	return set, sum, nil
}

// SetImage sets the image of all containers of a pod.
func SetImage(pod *corev1.PodSpec, image string) {
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			containers[i].Image = image
		}
	}
}

// Updated reports whether a pod has the pool's image and was made from the pod template with the checksum template. If only
// the image differs, imageOnly is true: the image can then be changed in the running pod.
func Updated(p *v1alpha1.AgentPool, template string, pod *corev1.PodSpec) (updated, imageOnly bool) {
	same := slices.ContainsFunc(pod.InitContainers, func(c corev1.Container) bool {
		return slices.Contains(c.Env, corev1.EnvVar{Name: templateVar, Value: template})
	})
	image := pod.Containers[0].Image == p.Spec.Image
	return same && image, same && !image
}

// adaptAgents adapts the container of the agents to the spec of a pool.
func adaptAgents(c *corev1.Container, p *v1alpha1.AgentPool) {
	// Remove this variable, because a pool has no default profile.
	c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "HERMES_GATEWAY_BOOTSTRAP_STATE" })
	for _, name := range slices.Sorted(maps.Keys(p.Spec.Env)) {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: p.Spec.Env[name]})
	}
}

// hostContainer returns the container of the host program. It starts before the container of the agents. The agents run as the same user,
// but can't see the files and processes of this container.
func hostContainer(agents *corev1.Container, p *v1alpha1.AgentPool) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	c := corev1.Container{
		Name: "fleet", Image: agents.Image, ImagePullPolicy: agents.ImagePullPolicy, RestartPolicy: &always, Command: []string{HostProgram, "host"},
		SecurityContext: agents.SecurityContext,
		Env:             []corev1.EnvVar{{Name: "HINIT_FLEET_POOL", Value: p.Name}, {Name: "HINIT_RUNTIME_DIR", Value: runtimeDir + "/hinit"}},
		VolumeMounts: []corev1.VolumeMount{
			{Name: dataVolume, MountPath: "/opt/data"}, {Name: "run", MountPath: runtimeDir}, {Name: "fleet", MountPath: CredentialsDir, ReadOnly: true},
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
	}
	for _, one := range [...]struct{ name, path string }{
		{"HINIT_FLEET_HOST", "metadata.name"}, {"HINIT_FLEET_UID", "metadata.uid"}, {"HINIT_FLEET_NAMESPACE", "metadata.namespace"}, {"HINIT_FLEET_ADDRESS", "status.podIP"},
	} {
		c.Env = append(c.Env, corev1.EnvVar{Name: one.name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: one.path}}})
	}
	return c
}

// hostNetworkPolicy adds the connections of hosts to the NetworkPolicy of package deploy: to other hosts for moves, and to
// the API server.
func hostNetworkPolicy(p *v1alpha1.AgentPool, text []byte) (*unstructured.Unstructured, error) {
	n := &networkingv1.NetworkPolicy{}
	if err := yaml.UnmarshalStrict(text, n); err != nil {
		return nil, err
	}
	port := func(number int) networkingv1.NetworkPolicyPort {
		at := intstr.FromInt(number)
		return networkingv1.NetworkPolicyPort{Port: &at}
	}
	hosts := []networkingv1.NetworkPolicyPeer{{PodSelector: &n.Spec.PodSelector}}
	moves := []networkingv1.NetworkPolicyPort{port(MovePort)}
	n.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: hosts, Ports: moves}}
	n.Spec.Egress = append(n.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: hosts, Ports: moves}, networkingv1.NetworkPolicyEgressRule{
		To:    []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cmp.Or(p.Spec.Network.APIServer, "0.0.0.0/0")}}},
		Ports: []networkingv1.NetworkPolicyPort{port(443), port(6443)},
	})
	return toUnstructured(n)
}

// toUnstructured converts a typed object to the form in which the controller applies it.
func toUnstructured(o any) (*unstructured.Unstructured, error) {
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	delete(u, "status")
	unstructured.RemoveNestedField(u, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(u, "spec", "template", "metadata", "creationTimestamp")
	return &unstructured.Unstructured{Object: u}, nil
}

func dataClaim(p *v1alpha1.AgentPool) corev1.PersistentVolumeClaim {
	c := corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: dataVolume, Labels: map[string]string{v1alpha1.PoolLabel: p.Name}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: p.Spec.Volume.Size}},
		},
	}
	if class := p.Spec.Volume.StorageClassName; class != "" {
		c.Spec.StorageClassName = &class
	}
	return c
}

// tokenVolume returns the volume with the token of a host for the API server.
func tokenVolume() corev1.Volume {
	mode, hour := int32(0o440), int64(3600)
	return corev1.Volume{Name: "fleet", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &hour}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
		},
	}}}
}

// sourceName is the name of a ConfigMap or a Secret.
type sourceName struct {
	secret bool
	name   string
}

// sourcesOf returns the ConfigMaps and Secrets that a profile names.
func sourcesOf(s *v1alpha1.AgentProfileSpec) (out []sourceName) {
	for _, key := range []*v1alpha1.ConfigMapKey{s.Soul, s.Config} {
		if key != nil {
			out = append(out, sourceName{false, key.ConfigMap})
		}
	}
	for _, k := range s.Skills {
		out = append(out, sourceName{false, k.ConfigMap})
	}
	for _, f := range s.Files {
		out = append(out, sourceName{f.Secret != "", cmp.Or(f.Secret, f.ConfigMap)})
	}
	for _, e := range s.Env {
		out = append(out, sourceName{true, e.Secret})
	}
	return out
}

// maxNameBytes limits the bytes of all names in the Role of a pool, because etcd takes no object of more than 1.5 MiB.
const maxNameBytes = 1 << 20

// Sources returns the names of the ConfigMaps and Secrets that profiles name, sorted. The hosts may read only these. If the
// names have more than maxNameBytes bytes in all, Sources leaves out the profiles with the longest lists. leftOut is the number
// of these profiles.
func Sources(profiles iter.Seq[*v1alpha1.AgentProfile]) (configMaps, secrets []string, leftOut int) {
	var all [][]sourceName
	for p := range profiles {
		all = append(all, sourcesOf(&p.Spec))
	}
	size := func(names []sourceName) (n int) {
		for _, one := range names {
			n += len(one.name) + len(`"",`)
		}
		return n
	}
	slices.SortFunc(all, func(a, b []sourceName) int { return cmp.Compare(size(a), size(b)) })
	granted, left := map[sourceName]bool{}, maxNameBytes
	for _, names := range all {
		more := slices.DeleteFunc(names, func(one sourceName) bool { return granted[one] })
		if size(more) > left {
			leftOut++
			continue
		}
		left -= size(more)
		for _, one := range more {
			granted[one] = true
		}
	}
	for one := range granted {
		if one.secret {
			secrets = append(secrets, one.name)
		} else {
			configMaps = append(configMaps, one.name)
		}
	}
	slices.Sort(configMaps)
	slices.Sort(secrets)
	return configMaps, secrets, leftOut
}

// HostMemory returns how many bytes of memory the profiles on one host may have together.
func HostMemory(p *v1alpha1.AgentPool) int64 {
	return p.Spec.Resources.Memory.Value() / 100 * int64(p.Spec.MemoryBound)
}

// ReservedMemory returns how many bytes of memory the placement reserves for a profile. This is the larger of the expected and
// the measured memory, or the pool's default if neither is known, and at least one MiB. The measured memory counts for at most
// the room of a host, because agents can falsify the measurement.
func ReservedMemory(p *v1alpha1.AgentPool, profile *v1alpha1.AgentProfile) int64 {
	most := func(q *resource.Quantity) int64 {
		if q == nil {
			return 0
		}
		return q.Value()
	}
	expected, measured := most(profile.Spec.Memory), min(most(profile.Status.Memory), HostMemory(p))
	if expected == 0 && measured == 0 {
		expected = p.Spec.ProfileMemory.Value()
	}
	return max(expected, measured, megabyte)
}
