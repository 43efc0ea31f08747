package lease

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func validVariables(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "namespace"), []byte("agents\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		nameVar: "team.a", identityVar: "5d1e0b6c-0000-4000-8000-000000000000", credentialsVar: dir, socketVar: "/run/hinit/notify/hinit-lease", hostVar: "fd00::1", portVar: "443",
	}
}

func TestSettingsAreReadFromTheEnvironment(t *testing.T) {
	env := validVariables(t)
	s, err := ReadSettings(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	if s.Namespace != "agents" || s.Duration != 15*time.Second || s.API.Host != "https://[fd00::1]:443" || s.API.BearerTokenFile != env[credentialsVar]+"/token" {
		t.Errorf("%+v", s)
	}
}

// TestAWrongVariableIsRefusedByItsName checks that wrong values of each variable are refused with its name.
func TestAWrongVariableIsRefusedByItsName(t *testing.T) {
	for name, values := range map[string][]string{
		nameVar:        {"", "Agents", "a_b", "-a", "a b", "a/b", strings.Repeat("a", 300)},
		namespaceVar:   {"Agents", "a.b", "a b", "../kube-system"},
		identityVar:    {"", "two words", "line\nbreak", "\x1b[31m", strings.Repeat("a", 201)},
		durationVar:    {"15", "fast", "0s", "-15s", "500ms", "1500ms", "2h"},
		credentialsVar: {"secrets", "./secrets", "/nowhere"},
		socketVar:      {"", "@abstract", "notify"},
		hostVar:        {""},
		portVar:        {""},
	} {
		for _, value := range values {
			env := maps.Clone(validVariables(t))
			env[name] = value
			_, err := ReadSettings(func(name string) string { return env[name] })
			if value == "/nowhere" {
				name = value // The message names the directory; the variable itself is valid.
			}
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%q: %v", name, value, err)
			}
		}
	}
}

// TestAllProblemsAreSaidAtOnce checks that the error names all missing variables.
func TestAllProblemsAreSaidAtOnce(t *testing.T) {
	_, err := ReadSettings(func(string) string { return "" })
	if err == nil || strings.Count(err.Error(), "\n") != 4 {
		t.Error(err)
	}
}

// TestAShortLeaseLeavesTimeToKill checks that a short lease leaves enough time to kill the services
// before it ends. Otherwise two pods could serve.
func TestAShortLeaseLeavesTimeToKill(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{
		time.Second: time.Second / 3, 3 * time.Second: time.Second, 5 * time.Second: time.Second, 15 * time.Second: 3 * time.Second, time.Hour: 12 * time.Minute,
	} {
		s := Settings{Duration: lease}
		if got := s.stopMargin(); got != want {
			t.Errorf("of %v: %v, want %v", lease, got, want)
		}
		if s.stopMargin()+s.Duration*2/15 >= s.Duration {
			t.Errorf("of %v: it ends before the next renewal", lease)
		}
	}
}
