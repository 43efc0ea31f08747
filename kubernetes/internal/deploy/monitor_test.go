package deploy

import (
	"os"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestPrometheusOperatorTakesThePodMonitor decodes the PodMonitor of the component metrics strictly, by the types of Prometheus Operator. It
// compares the port and the Secret of the token with the pod's.
func TestPrometheusOperatorTakesThePodMonitor(t *testing.T) {
	text, err := os.ReadFile("../../deploy/components/metrics/monitor.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m monitoringv1.PodMonitor
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatal(err)
	}
	if m.APIVersion != monitoringv1.SchemeGroupVersion.String() || m.Kind != monitoringv1.PodMonitorsKind || len(m.Spec.PodMetricsEndpoints) != 1 {
		t.Fatalf("%+v", m)
	}
	problem := strings.Replace(string(text), "podMetricsEndpoints:", "podMetricsEndpoint:", 1)
	if yaml.UnmarshalStrict([]byte(problem), new(monitoringv1.PodMonitor)) == nil {
		t.Error("an unknown field was taken")
	}
	out, err := renderKustomize(t, "metrics")
	if err != nil {
		t.Fatal(err, out)
	}
	set, _ := parseObjects(t, out)["StatefulSet/agents"].(map[string]any)
	pod, err := yaml.Marshal(set["spec"].(map[string]any)["template"])
	if err != nil {
		t.Fatal(err)
	}
	var template corev1.PodTemplateSpec
	if err := yaml.Unmarshal(pod, &template); err != nil {
		t.Fatal(err)
	}
	for key, value := range m.Spec.Selector.MatchLabels {
		if template.Labels[key] != value {
			t.Errorf("the PodMonitor wants pods with %s=%s, and the pod has %v", key, value, template.Labels)
		}
	}
	e := m.Spec.PodMetricsEndpoints[0]
	if ports := template.Spec.Containers[0].Ports; e.Port == nil || len(ports) != 1 || ports[0].Name != *e.Port {
		t.Errorf("the PodMonitor wants the port %v, and the pod has %v", e.Port, ports)
	}
	secret := ""
	for _, v := range template.Spec.Volumes {
		if v.Secret != nil {
			secret = v.Secret.SecretName
		}
	}
	if e.Authorization == nil || e.Authorization.Credentials == nil || e.Authorization.Credentials.Name != secret || e.Authorization.Credentials.Key != "token" {
		t.Errorf("the PodMonitor names the token %+v, and the pod mounts the Secret %q", e.Authorization, secret)
	}
}
