package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// Group is the API group of the fleet. The marker in doc.go repeats it for controller-gen, and a test compares them.
const Group = "agents.hinit.dev"

// Version is the version of the API.
const Version = "v1alpha1"

// GroupVersion is the group with its version.
var GroupVersion = schema.GroupVersion{Group: Group, Version: Version}

const (
	// Finalizer keeps a deleted AgentProfile in the API until its host has stopped the gateway.
	Finalizer = Group + "/gateway"
	// ExportFinalizer keeps an AgentProfile in the API that hinit-fleet export has deleted, until it runs outside of the fleet.
	ExportFinalizer = Group + "/export"
	// ImportAnnotation and ExportAnnotation say how far hinit-fleet import or export is with a profile, and which command works on it.
	ImportAnnotation = Group + "/import"
	ExportAnnotation = Group + "/export"
	// CreatedAnnotation is written by a host together with the finalizer, see [AgentProfile.InstalledAssignment].
	CreatedAnnotation = Group + "/created"
	// PoolLabel is the label with the name of the pool, on every object that belongs to the pool.
	PoolLabel = Group + "/pool"
	// ProfileLabel is the label with the name of the profile, on the objects of a pod that runs only this profile.
	ProfileLabel = Group + "/profile"
	// ReachableCondition is False while the host of a profile is lost.
	ReachableCondition = "HostReachable"
	// PlacedCondition is False while no host has room for a profile.
	PlacedCondition = "Placed"
	// ConfiguredCondition is False when a ConfigMap or Secret of a profile can't be applied.
	ConfiguredCondition = "Configured"
)

// AddToScheme registers the kinds of the fleet in a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &AgentPool{}, &AgentPoolList{}, &AgentProfile{}, &AgentProfileList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Scheme returns a scheme with the kinds of the fleet and of Kubernetes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		panic(err) // a bug in this program
	}
	if err := AddToScheme(s); err != nil {
		panic(err)
	}
	return s
}
