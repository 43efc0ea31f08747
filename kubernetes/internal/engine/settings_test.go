package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "namespace"), []byte("agents\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := map[string]string{hostVar: "10.0.0.1", portVar: "443", prefix + "CREDENTIALS": dir, prefix + "POD": "agents-0"}
	read := func(more ...string) (Settings, error) {
		return ReadSettings(func(name string) string {
			for _, m := range more {
				if key, value, _ := strings.Cut(m, "="); prefix+key == name {
					return value
				}
			}
			return base[name]
		})
	}
	s, err := read()
	if err != nil || s.Namespace != "agents" || s.IdleTime != 24*time.Hour || s.API.Host != "https://10.0.0.1:443" || s.Container != "sandboxes" {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err = read("HOST_USERS=false", "PULL_SECRETS=a, b", "IDLE=0"); err != nil || len(s.PullSecrets) != 2 || s.IdleTime != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, problem := range []string{"NAMESPACE=A_b", "OWNER=a b", "KIND=pod", "HOST_USERS=no", "PULL_POLICY=always", "CPU=lots", "MEMORY=-1Gi", "STORAGE=0", "DISK=0", "IDLE=1s", "EXPIRE=soon", "WARM=all", "RUNTIME=gVisor", "IMAGE=a b", "CREDENTIALS=here"} {
		name, _, _ := strings.Cut(problem, "=")
		if _, err := read(problem); err == nil || !strings.Contains(err.Error(), prefix+name) {
			t.Errorf("%s: %v", problem, err)
		}
	}
	delete(base, prefix+"POD")
	if _, err := read(); err == nil || !strings.Contains(err.Error(), prefix+"POD") {
		t.Error("without a pod and an image:", err)
	}
}

// TestAServiceThatMayHaveAnotherConfigurationThanTheAgentsRefuses checks that the sandbox service
// refuses to start if only the agents' container mounts hinit.yaml. With another configuration, it
// could give isolated profiles shared sandboxes.
func TestAServiceThatMayHaveAnotherConfigurationThanTheAgentsRefuses(t *testing.T) {
	s, err := ReadSettings(func(name string) string {
		return map[string]string{
			hostVar: "10.0.0.1", portVar: "443", prefix + "NAMESPACE": "agents", prefix + "POD": "agents-0", "HINIT_SANDBOX_SOCKET": "/run/sandboxes/sandbox.sock",
		}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	socket := corev1.VolumeMount{Name: "sandboxes", MountPath: "/run/sandboxes"}
	mount := func(name, at, below string) func(*corev1.Container) {
		return func(c *corev1.Container) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, SubPath: below})
		}
	}
	config, variable := mount("config", "/etc/hinit", ""), func(value string) func(*corev1.Container) {
		return func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "HINIT_CONFIG", Value: value}} }
	}
	list := func(changes ...func(*corev1.Container)) []func(*corev1.Container) { return changes }
	for what, one := range map[string]struct {
		known           bool
		agents, service []func(*corev1.Container)
	}{
		"both have the image's":         {true, nil, nil},
		"both mount it":                 {true, list(config), list(config)},
		"only the agents mount it":      {false, list(config), nil},
		"only the service mounts it":    {false, nil, list(config)},
		"the file alone":                {false, list(mount("file", "/etc/hinit/hinit.yaml", "hinit.yaml")), nil},
		"two volumes":                   {false, list(mount("mine", "/etc/hinit", "")), list(config)},
		"two files of one volume":       {false, list(mount("config", "/etc/hinit", "a")), list(config)},
		"a file over the directory":     {false, list(config, mount("mine", "/etc/hinit/hinit.yaml", "x")), list(config)},
		"another image":                 {false, list(func(c *corev1.Container) { c.Image = "other" }), nil},
		"another image, but both mount": {true, list(config, func(c *corev1.Container) { c.Image = "other" }), list(config)},
		"only the agents name another":  {false, list(variable("/opt/data/hinit.yaml")), nil},
		"both name the same":            {true, list(variable("/etc/hinit/hinit.yaml")), list(variable("/etc/hinit/hinit.yaml"))},
	} {
		agents := corev1.Container{Name: "agents", Image: "hinit", VolumeMounts: []corev1.VolumeMount{socket}}
		service := corev1.Container{Name: "sandboxes", Image: "hinit", VolumeMounts: []corev1.VolumeMount{socket}}
		for _, change := range one.agents {
			change(&agents)
		}
		for _, change := range one.service {
			change(&service)
		}
		other := corev1.Container{Name: "logs", Image: "shipper"} // This container can't reach the service's socket.
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "agents-0", Namespace: "agents"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{agents, other}, InitContainers: []corev1.Container{service}},
		}
		e := &Engine{settings: s, core: fake.NewClientset(pod)}
		_, err := e.Self(t.Context())
		if (err == nil) != one.known || err != nil && !strings.Contains(err.Error(), "cannot tell whether profiles are isolated: the container agents may have another") {
			t.Errorf("%s: %v", what, err)
		}
		abstract := &Engine{settings: s, core: fake.NewClientset(pod)}
		abstract.settings.Paths.socket = "@sandboxes"
		if _, err := abstract.Self(t.Context()); err == nil {
			t.Errorf("%s: the container logs reaches an abstract socket, and may have another file", what)
		}
	}
}
