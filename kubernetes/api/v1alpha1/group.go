package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// Group is the API group of the fleet. The marker in doc.go repeats it for controller-gen, and a test compares them.
const Group = "agents.hinit.dev"

// Version is the version of the API that this package defines.
const Version = "v1alpha1"

// GroupVersion is the group together with its version.
var GroupVersion = schema.GroupVersion{Group: Group, Version: Version}

const (
	// Finalizer keeps a deleted AgentProfile in the API until its host has stopped the gateway. The host needs the object,
	// because it says what to do with the data.
	Finalizer = Group + "/gateway"
	// ExportFinalizer is set by `hinit-fleet export`. It keeps the deleted AgentProfile in the API until the profile runs
	// outside of the fleet.
	ExportFinalizer = Group + "/export"
	// ImportAnnotation records how far `hinit-fleet import` has come with a profile, and which command works on it. After a
	// crash, the next command continues at that point.
	ImportAnnotation = Group + "/import"
	// ExportAnnotation records how far `hinit-fleet export` has come with a profile, and which command works on it.
	ExportAnnotation = Group + "/export"
	// CreatedAnnotation says that the host has created a new profile, see [AgentProfile.InstalledAssignment]. The host writes
	// it together with the finalizer.
	CreatedAnnotation = Group + "/created"
	// PoolLabel holds the name of the pool, on every object that belongs to the pool.
	PoolLabel = Group + "/pool"
	// ProfileLabel holds the name of the profile, on the objects of a pod that runs only this profile.
	ProfileLabel = Group + "/profile"
	// ReachableCondition is False while the host of a profile is lost.
	ReachableCondition = "HostReachable"
	// PlacedCondition is False while no host has room for the profile.
	PlacedCondition = "Placed"
	// ConfiguredCondition is False while a ConfigMap or Secret of the profile can't be applied.
	ConfiguredCondition = "Configured"
)

// Scheme returns a scheme with the kinds of the fleet and of Kubernetes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		panic(err) // this is only possible through a bug in this program
	}
	s.AddKnownTypes(GroupVersion, &AgentPool{}, &AgentPoolList{}, &AgentProfile{}, &AgentProfileList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return s
}
