package boot

import (
	"testing"

	"hinit/internal/gendocs/reference"
)

func TestHooksOfTheImage(t *testing.T) {
	hooks := ConfiguredHooks(reference.Default())
	if len(hooks) != 2 || hooks[0].Name != "docker_config_migrate.py" || hooks[1].Name != "skills_sync.py" || hooks[0].User != "hermes" ||
		hooks[0].IfExists != "/opt/hermes/scripts/docker_config_migrate.py" || hooks[1].Command[0] != "/opt/hermes/.venv/bin/python" {
		t.Errorf("hooks are %+v", hooks)
	}
	if got := hookName([]string{"/bin/sync", "-f"}); got != "sync" {
		t.Errorf("name is %q", got)
	}
}
