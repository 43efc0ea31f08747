// Package strict checks that a version of Kubernetes has every field of the manifests. It decodes the manifests into the Go
// types of that version. Tests build the package with each of the go.mod files in versions/. The package owns no goroutine.
package strict

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// kinds maps each apiVersion and kind that the manifests may contain to a function that returns an empty object of that kind.
var kinds = map[string]func() any{
	"apps/v1 StatefulSet":                                       func() any { return new(appsv1.StatefulSet) },
	"v1 ConfigMap":                                              func() any { return new(corev1.ConfigMap) },
	"v1 Namespace":                                              func() any { return new(corev1.Namespace) },
	"v1 PersistentVolumeClaim":                                  func() any { return new(corev1.PersistentVolumeClaim) },
	"v1 Service":                                                func() any { return new(corev1.Service) },
	"v1 ServiceAccount":                                         func() any { return new(corev1.ServiceAccount) },
	"networking.k8s.io/v1 NetworkPolicy":                        func() any { return new(networkingv1.NetworkPolicy) },
	"policy/v1 PodDisruptionBudget":                             func() any { return new(policyv1.PodDisruptionBudget) },
	"coordination.k8s.io/v1 Lease":                              func() any { return new(coordinationv1.Lease) },
	"apps/v1 Deployment":                                        func() any { return new(appsv1.Deployment) },
	"rbac.authorization.k8s.io/v1 ClusterRole":                  func() any { return new(rbacv1.ClusterRole) },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding":           func() any { return new(rbacv1.ClusterRoleBinding) },
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy": func() any { return new(admissionv1.ValidatingAdmissionPolicy) },
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": func() any { return new(admissionv1.ValidatingAdmissionPolicyBinding) },
	"rbac.authorization.k8s.io/v1 Role":                                func() any { return new(rbacv1.Role) },
	"rbac.authorization.k8s.io/v1 RoleBinding":                         func() any { return new(rbacv1.RoleBinding) },
}

// Decode checks the YAML of one object. It returns an error for an unknown kind or field, and for a value of the wrong type.
func Decode(text []byte) error {
	var head struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(text, &head); err != nil {
		return err
	}
	make, known := kinds[head.APIVersion+" "+head.Kind]
	if !known {
		return fmt.Errorf("the kind %q of %q is not known", head.Kind, head.APIVersion)
	}
	return yaml.UnmarshalStrict(text, make())
}
