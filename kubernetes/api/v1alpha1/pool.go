package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AgentPool is a set of pods with a volume each. Each pod is a host, which runs the gateways of several agents.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=apool
// +kubebuilder:printcolumn:name="Hosts",type=integer,JSONPath=`.status.hosts`
// +kubebuilder:printcolumn:name="Reachable",type=integer,JSONPath=`.status.reachable`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.updated`
// +kubebuilder:printcolumn:name="Profiles",type=integer,JSONPath=`.status.profiles`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pending`
// +kubebuilder:printcolumn:name="Lost",type=integer,JSONPath=`.status.lost`
// +kubebuilder:printcolumn:name="Doing",type=string,JSONPath=`.status.doing`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40",message="the name of a pool has at most 40 characters: its pods are named after it"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="the name of a pool has a letter first, then letters, digits and -: its Service has that name"
type AgentPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec AgentPoolSpec `json:"spec"`
	// +optional
	Status AgentPoolStatus `json:"status,omitempty"`
}

// AgentPoolSpec is the wanted state of a pool. The user writes it.
type AgentPoolSpec struct {
	// image of the agent, with hinit and hinit-fleet. Give each version its own tag.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^\\\\s]+$')",message="an image has no white space"
	Image string `json:"image"`
	// hosts limits the number of pods. Pods of a single profile are not counted.
	Hosts HostRange `json:"hosts"`
	// resources of one host.
	// +optional
	// +kubebuilder:default={}
	Resources HostResources `json:"resources,omitzero"`
	// volume of one host.
	// +optional
	// +kubebuilder:default={}
	Volume HostVolume `json:"volume,omitzero"`
	// isolation of the gateways of a host from each other. With "files", a gateway can't reach the homes of other profiles. With
	// "none", it can.
	// +optional
	// +kubebuilder:default=none
	// +kubebuilder:validation:Enum=none;files
	Isolation string `json:"isolation,omitempty"`
	// memoryBound is the percentage of a host's memory that its profiles may use together.
	// +optional
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=100
	MemoryBound int32 `json:"memoryBound,omitempty"`
	// profileMemory is the memory that the placement assumes for a profile before its memory was measured.
	// +optional
	// +kubebuilder:default="128Mi"
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="profileMemory is from 1Mi to 1Ti"
	ProfileMemory resource.Quantity `json:"profileMemory,omitzero"`
	// topologyKey is the node label over whose values hosts are spread.
	// +optional
	// +kubebuilder:default=kubernetes.io/hostname
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$')",message="topologyKey is a key of a node label, such as topology.kubernetes.io/zone"
	TopologyKey string `json:"topologyKey,omitempty"`
	// drain lists hosts that give all their profiles to other hosts and get no new ones.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?-[0-9]+$`
	Drain []string `json:"drain,omitempty"`
	// rollout says how hosts get a new image.
	// +optional
	// +kubebuilder:default={}
	Rollout Rollout `json:"rollout,omitzero"`
	// network limits the connections of the hosts' pods.
	// +optional
	// +kubebuilder:default={}
	Network Network `json:"network,omitzero"`
	// env has environment variables for the container of the agents.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[A-Za-z_][A-Za-z0-9_]*$'))",message="a variable has letters, digits and _ and no digit first"
	Env map[string]string `json:"env,omitempty"`
}

// Network limits the connections of the hosts' pods. You can allow more by a NetworkPolicy of your own.
type Network struct {
	// policy makes a NetworkPolicy. A host then accepts connections only from hosts of its pool, for moves. Of private addresses,
	// it reaches only these hosts, the API server and DNS.
	// +optional
	// +kubebuilder:default=true
	Policy *bool `json:"policy,omitempty"`
	// apiServer is the address of the API server, as ADDRESS/32. The agents reach ports 443 and 6443 there too.
	// +optional
	// +kubebuilder:default="0.0.0.0/0"
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="apiServer is an address with the length of its prefix, such as 10.0.0.1/32"
	APIServer string `json:"apiServer,omitempty"`
}

// HostRange limits the number of hosts.
//
// +kubebuilder:validation:XValidation:rule="self.min <= self.max",message="hosts.min is at most hosts.max"
type HostRange struct {
	// min is the smallest number of hosts.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Min int32 `json:"min"`
	// max is the largest number of hosts.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Max int32 `json:"max"`
}

// HostResources are the resources of one host.
type HostResources struct {
	// cpu that a host requests, in Kubernetes' sense.
	// +optional
	// +kubebuilder:default="250m"
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('10m')) >= 0",message="cpu is at least 10m"
	CPU resource.Quantity `json:"cpu,omitzero"`
	// memory of a host, as its request and its limit.
	// +optional
	// +kubebuilder:default="4Gi"
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('64Mi')) >= 0 && quantity(string(self)).compareTo(quantity('64Ti')) <= 0",message="memory is from 64Mi to 64Ti"
	Memory resource.Quantity `json:"memory,omitzero"`
}

// HostVolume is the volume of one host.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the volume of a pool can't change: make another pool"
type HostVolume struct {
	// size of the volume.
	// +optional
	// +kubebuilder:default="10Gi"
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('16Mi')) >= 0",message="size is at least 16Mi"
	Size resource.Quantity `json:"size,omitzero"`
	// storageClassName of the volume; empty for the cluster's default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$`
	StorageClassName string `json:"storageClassName,omitempty"`
}

// Rollout says how hosts get a new image.
type Rollout struct {
	// maxUnavailable is the number of hosts that are replaced at the same time.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`
	// whenIdle replaces a host only while none of its gateways works on an answer.
	// +optional
	WhenIdle bool `json:"whenIdle,omitempty"`
	// idleSeconds is how long whenIdle waits for one host. After that, the host is replaced even if a gateway works.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	IdleSeconds int32 `json:"idleSeconds,omitempty"`
}

// AgentPoolStatus is the observed state of a pool. The controller writes it.
type AgentPoolStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// wanted is the number of pods that the pool should have: hosts, and pods of one profile each.
	// +optional
	Wanted int32 `json:"wanted"`
	// hosts is the number of pods.
	// +optional
	Hosts int32 `json:"hosts"`
	// reachable is the number of pods that run and report.
	// +optional
	Reachable int32 `json:"reachable"`
	// updated is the number of pods with the wanted image.
	// +optional
	Updated int32 `json:"updated"`
	// profiles is the number of profiles of the pool.
	// +optional
	Profiles int32 `json:"profiles"`
	// ready is the number of profiles whose gateways are ready.
	// +optional
	Ready int32 `json:"ready"`
	// pending is the number of profiles without a host.
	// +optional
	Pending int32 `json:"pending"`
	// lost is the number of profiles whose host is lost.
	// +optional
	Lost int32 `json:"lost"`
	// doing says what the controller does with the pool; empty if it does nothing.
	// +optional
	Doing string `json:"doing,omitempty"`
	// leaving is the host whose profiles are moving away before it is removed.
	// +optional
	Leaving string `json:"leaving,omitempty"`
}

// AgentPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type AgentPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AgentPool `json:"items"`
}
