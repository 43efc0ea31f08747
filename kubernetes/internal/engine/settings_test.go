package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "namespace"), []byte("agents\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	base := map[string]string{hostVar: "10.0.0.1", portVar: "443", prefix + "CREDENTIALS": dir, prefix + "POD": "agents-0"}
	read := func(more ...string) (Settings, error) {
		return Read(func(name string) string {
			for _, m := range more {
				if key, value, _ := strings.Cut(m, "="); prefix+key == name {
					return value
				}
			}
			return base[name]
		})
	}
	s, err := read()
	if err != nil || s.Namespace != "agents" || s.Idle != 24*time.Hour || s.API.Host != "https://10.0.0.1:443" || s.Container != "sandboxes" {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err = read("HOST_USERS=false", "PULL_SECRETS=a, b", "IDLE=0"); err != nil || len(s.PullSecrets) != 2 || s.Idle != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, wrong := range []string{"NAMESPACE=A_b", "OWNER=a b", "KIND=pod", "HOST_USERS=no", "PULL_POLICY=always", "CPU=lots", "MEMORY=-1Gi", "STORAGE=0", "IDLE=1s", "EXPIRE=soon", "WARM=all", "RUNTIME=gVisor", "IMAGE=a b", "CREDENTIALS=here"} {
		name, _, _ := strings.Cut(wrong, "=")
		if _, err := read(wrong); err == nil || !strings.Contains(err.Error(), prefix+name) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	delete(base, prefix+"POD")
	if _, err := read(); err == nil || !strings.Contains(err.Error(), prefix+"POD") {
		t.Error("without a pod and an image:", err)
	}
}
