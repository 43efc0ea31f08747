package v1alpha1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AgentProfile is one agent of a pool.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=aprof
// +kubebuilder:selectablefield:JSONPath=`.spec.pool`
// +kubebuilder:selectablefield:JSONPath=`.status.host`
// +kubebuilder:selectablefield:JSONPath=`.status.move.to`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.host`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.since`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restarts`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.memory`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Placement",type=string,JSONPath=`.spec.placement`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z0-9][-a-z0-9]*$')",message="the name of a profile has at most 63 letters, digits and -: the agent knows it by that name"
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['default', 'hermes', 'test', 'tmp', 'root', 'sudo'])",message="the agent keeps the names default, hermes, test, tmp, root and sudo for itself"
type AgentProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec AgentProfileSpec `json:"spec"`
	// +optional
	Status AgentProfileStatus `json:"status,omitempty"`
}

// AgentProfileSpec is the wanted state of a profile. The user writes it.
//
// +kubebuilder:validation:XValidation:rule="self.pool == oldSelf.pool",message="the pool of a profile can't change: its data is on a host of that pool"
// +kubebuilder:validation:XValidation:rule="!has(self.pin) || size(self.pin) == 0 || self.pin.startsWith(self.pool + '-')",message="pin names a host of the pool, such as POOL-0"
// +kubebuilder:validation:XValidation:rule="!has(self.placement) || self.placement != 'pod' || !has(self.pin) || size(self.pin) == 0",message="pin is for packed profiles: placement pod gives a pod of its own"
// +kubebuilder:validation:XValidation:rule="!has(self.recover) || self.recover.lostHost.startsWith(self.pool + '-')",message="recover.lostHost names a host of the pool, such as POOL-0"
type AgentProfileSpec struct {
	// pool is the name of the AgentPool, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Pool string `json:"pool"`
	// running says whether the gateway should run.
	// +optional
	// +kubebuilder:default=true
	Running *bool `json:"running,omitempty"`
	// soul is the text of SOUL.md.
	// +optional
	Soul *ConfigMapKey `json:"soul,omitempty"`
	// config is the text of config.yaml.
	// +optional
	Config *ConfigMapKey `json:"config,omitempty"`
	// env names Secrets whose keys are the variables of .env. If two have the same key, the later Secret counts.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Env []SecretName `json:"env,omitempty"`
	// files are further files of the profile.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=path
	Files []ProfileFile `json:"files,omitempty"`
	// skills are directories below skills/, each with a file for each key of a ConfigMap.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Skills []Skill `json:"skills,omitempty"`
	// memory that the gateway is expected to need. A larger measured value takes precedence.
	// +optional
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('1Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="memory is from 1Mi to 1Ti"
	Memory *resource.Quantity `json:"memory,omitempty"`
	// priority decides which profile is placed first when there is little room. The higher one comes first.
	// +optional
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	Priority int32 `json:"priority,omitempty"`
	// placement is packed for a host with other profiles, or pod for a pod of its own, which is made like the pool's hosts. A
	// change moves the profile with its data.
	// +optional
	// +kubebuilder:default=packed
	// +kubebuilder:validation:Enum=packed;pod
	Placement string `json:"placement,omitempty"`
	// pin is the only host that may have the profile; empty for any host.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z]([-a-z0-9]*[a-z0-9])?-(0|[1-9][0-9]{0,3}))?$`
	Pin string `json:"pin,omitempty"`
	// onDelete says what happens to the data when the object is deleted. Retain keeps it on the volume of the host. Delete removes
	// it, and also the volume of a pod of its own.
	// +optional
	// +kubebuilder:default=Retain
	// +kubebuilder:validation:Enum=Retain;Delete
	OnDelete string `json:"onDelete,omitempty"`
	// recover gives up the data on a host that will not come back.
	// +optional
	Recover *Recovery `json:"recover,omitempty"`
}

// ConfigMapKey names a key of a ConfigMap.
type ConfigMapKey struct {
	// configMap is the name of the ConfigMap.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	ConfigMap string `json:"configMap"`
	// key of its data.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key"`
}

// SecretName names a Secret.
type SecretName struct {
	// secret is the name of the Secret.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	Secret string `json:"secret"`
}

// ProfileFile is a file of a profile.
//
// +kubebuilder:validation:XValidation:rule="has(self.configMap) != has(self.secret)",message="a file comes from a configMap or from a secret, and not from both"
// +kubebuilder:validation:XValidation:rule="!self.path.startsWith('/') && !self.path.split('/').exists(p, size(p) == 0 || p == '.' || p == '..')",message="path is relative to the home of the profile, without . and .. and empty parts"
// +kubebuilder:validation:XValidation:rule="!(self.path in ['SOUL.md', 'config.yaml', '.env', 'gateway_state.json'])",message="SOUL.md, config.yaml and .env have fields of their own, and gateway_state.json is the agent's"
type ProfileFile struct {
	// path below the home of the profile.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	Path string `json:"path"`
	// configMap is the name of a ConfigMap.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ConfigMap string `json:"configMap,omitempty"`
	// secret is the name of a Secret.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Secret string `json:"secret,omitempty"`
	// key of the data.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key"`
}

// Skill is a directory below skills/.
type Skill struct {
	// name of the directory.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9][-_a-z0-9]*$`
	Name string `json:"name"`
	// configMap is the name of a ConfigMap. Each of its keys is a file.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	ConfigMap string `json:"configMap"`
}

// Recovery gives up the data of a lost host. Set it only if that host and its volume will not come back. Each value takes effect
// only once. If it stays in a manifest, it does nothing when the host is lost again.
//
// +kubebuilder:validation:XValidation:rule="has(self.archive) != (has(self.empty) && self.empty)",message="recover needs an archive, or empty: true, and not both"
type Recovery struct {
	// lostHost is the host whose data is given up. Nothing happens if status.host is another host, or the profile is not Lost.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?-(0|[1-9][0-9]{0,3})$`
	LostHost string `json:"lostHost"`
	// archive is a file in .hinit-fleet/backups on the volume of the new host, from which the profile is restored.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-._A-Za-z0-9]*$`
	Archive string `json:"archive,omitempty"`
	// empty makes the profile start again without data.
	// +optional
	Empty bool `json:"empty,omitempty"`
}

// PlacementPod is the value of spec.placement for a profile that has a pod of its own.
const PlacementPod = "pod"

// Phase is the state of a profile in one word.
type Phase string

// The values of Phase.
const (
	PhasePending  Phase = "Pending"  // the profile has no host yet
	PhaseStarting Phase = "Starting" // the host is creating the profile, or the gateway is not ready yet
	PhaseRunning  Phase = "Running"  // the gateway is up and ready
	PhaseStopping Phase = "Stopping" // the gateway is being stopped
	PhaseStopped  Phase = "Stopped"  // the gateway is down, as wanted
	PhaseBackoff  Phase = "Backoff"  // the gateway has crashed and waits for its restart delay
	PhaseParked   Phase = "Parked"   // starting the gateway again is pointless until something changes
	PhaseFailed   Phase = "Failed"   // the gateway can't be started as defined
	PhaseMoving   Phase = "Moving"   // the data is moving to another host
	PhaseWaiting  Phase = "Waiting"  // the host is restarting
	PhaseLost     Phase = "Lost"     // the host is lost, or the data is not on it
)

// AgentProfileStatus is the observed state of a profile. The controller writes it, and the host that has the profile.
type AgentProfileStatus struct {
	// observedGeneration is the generation of the spec that the host has applied.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// phase is one of Pending, Starting, Running, Stopping, Stopped, Backoff, Parked, Failed, Moving, Waiting and Lost.
	// +optional
	// +kubebuilder:validation:Enum=Pending;Starting;Running;Stopping;Stopped;Backoff;Parked;Failed;Moving;Waiting;Lost
	Phase Phase `json:"phase,omitempty"`
	// ready says whether the gateway has reported that it is ready.
	// +optional
	Ready bool `json:"ready"`
	// since is the time at which the phase began.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// restarts counts the starts after an exit that was not requested.
	// +optional
	Restarts int32 `json:"restarts"`
	// cause of the last exit, in the words of `hinit status`.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Cause string `json:"cause,omitempty"`
	// lastExit describes how the gateway last ended.
	// +optional
	LastExit *LastExit `json:"lastExit,omitempty"`
	// message tells people why the profile is in this phase.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// memory as it was measured. It is updated when the measured value has changed by more than a quarter.
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// host is the pod that has the data. Once it is set, only that host changes it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Host string `json:"host,omitempty"`
	// assignment is a number that grows with each change of host.
	// +optional
	Assignment int64 `json:"assignment,omitempty"`
	// installed is the assignment for which the host has confirmed that the data is on its volume. 0: there is no data yet.
	// +optional
	Installed int64 `json:"installed,omitempty"`
	// missing says whether the host has reported that the data is not on its volume.
	// +optional
	Missing bool `json:"missing,omitempty"`
	// receipt describes the data that the host got from another host.
	// +optional
	Receipt *Receipt `json:"receipt,omitempty"`
	// recovered is the value of spec.recover that was last carried out, or ignored because the host was not lost. Nothing more is
	// given up until spec.recover is removed or changed.
	// +optional
	Recovered *Recovery `json:"recovered,omitempty"`
	// applied is a checksum of the files that the host has written.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Applied string `json:"applied,omitempty"`
	// move is a change of the host that has begun.
	// +optional
	Move *Move `json:"move,omitempty"`
	// moveFailure describes the last moves, if they failed and the host ended them. It delays the next move.
	// +optional
	MoveFailure *MoveFailure `json:"moveFailure,omitempty"`
	// conditions are HostReachable, Placed and Configured.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LastExit describes how a gateway last ended.
type LastExit struct {
	// code is the exit code; absent if a signal has ended the gateway.
	// +optional
	Code *int32 `json:"code,omitempty"`
	// signal is the number of the signal that has ended the gateway.
	// +optional
	Signal *int32 `json:"signal,omitempty"`
	// cause in the words of `hinit status`.
	// +kubebuilder:validation:MaxLength=1024
	Cause string `json:"cause"`
	// at is the time of the exit.
	At metav1.Time `json:"at"`
}

// Move is a change of the host. The controller begins it, and the host that has the data ends it.
type Move struct {
	// to is the host that should get the data.
	// +kubebuilder:validation:MaxLength=63
	To string `json:"to"`
	// reason for the move, for people.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Reason string `json:"reason,omitempty"`
	// since is the time at which the move began.
	Since metav1.Time `json:"since"`
	// offer says where the new host can fetch the data. While there is an offer, the gateway is stopped.
	// +optional
	Offer *Offer `json:"offer,omitempty"`
	// received describes the data that the new host has stored.
	// +optional
	Received *Receipt `json:"received,omitempty"`
	// failures counts how often the move has failed since it began, or since the new host last got more of the data.
	// +optional
	Failures int32 `json:"failures,omitempty"`
}

// MoveFailure describes moves that have failed. It is removed after a move that succeeds, and a day after the last failure.
type MoveFailure struct {
	// attempts is the number of moves in a row that have failed.
	Attempts int32 `json:"attempts"`
	// to is the host to which the last failed move went. The next move goes to another host if possible.
	// +kubebuilder:validation:MaxLength=63
	To string `json:"to"`
	// at is the time at which the host ended the last failed move.
	At metav1.Time `json:"at"`
	// message says, for people, why the last move failed.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// Offer tells the new host of a move where to fetch the data of the stopped gateway.
type Offer struct {
	// nonce is a random word that identifies this offer.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]*$`
	Nonce string `json:"nonce"`
	// address of the host that has the data, HOST:PORT.
	// +kubebuilder:validation:MaxLength=64
	Address string `json:"address"`
	// certificate is the SHA-256 of the only certificate with which that host answers.
	// +kubebuilder:validation:MaxLength=64
	Certificate string `json:"certificate"`
}

// Receipt says that the new host of a move has stored the data that it fetched by an Offer.
type Receipt struct {
	// nonce of the offer.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]*$`
	Nonce string `json:"nonce"`
	// sha256 of the received stream.
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
	// bytes is the length of the received stream.
	Bytes int64 `json:"bytes"`
}

// AgentProfileList is a list of profiles.
//
// +kubebuilder:object:root=true
type AgentProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AgentProfile `json:"items"`
}

// WantsOwnPod reports whether the spec asks for a pod of its own.
func (p *AgentProfile) WantsOwnPod() bool { return p.Spec.Placement == PlacementPod }

// WantsGateway reports whether the spec asks for a running gateway. This is the default.
func (p *AgentProfile) WantsGateway() bool { return p.Spec.Running == nil || *p.Spec.Running }

// InstalledAssignment returns the assignment for which the owner last confirmed that it has the data, or 0. It is normally in
// status.installed. The host of a new profile confirms the assignment earlier: in an annotation that it writes together with
// the finalizer. It writes the status only when the gateway is ready.
func (p *AgentProfile) InstalledAssignment() int64 {
	if p.Annotations[CreatedAnnotation] == p.createdMark() {
		return p.Status.Assignment
	}
	return p.Status.Installed
}

// createdMark returns the value of CreatedAnnotation for the current assignment. It contains the UID, so that an annotation
// that was copied from another object does not count.
func (p *AgentProfile) createdMark() string { return fmt.Sprintf("%s/%d", p.UID, p.Status.Assignment) }

// MarkCreated adds the finalizer to p, and the annotation which says that the owner has the data. The caller writes p to the
// API.
func (p *AgentProfile) MarkCreated() {
	p.Finalizers = append(p.Finalizers, Finalizer)
	metav1.SetMetaDataAnnotation(&p.ObjectMeta, CreatedAnnotation, p.createdMark())
}
