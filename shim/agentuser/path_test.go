package agentuser_test

import (
	"testing"

	"hinit/shim/agentuser"
)

func TestTheAgentsPathIsAsItWasBeforeRootsCameFirst(t *testing.T) {
	const image = "/opt/hermes/bin:/opt/hermes/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/data/.local/bin"
	for path, want := range map[string]string{
		image:                              "/opt/hermes/bin:/opt/hermes/.venv/bin:/opt/data/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"/command:" + image:                "/command:/opt/hermes/bin:/opt/hermes/.venv/bin:/opt/data/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"/a:/opt/data/.local/bin:/usr/bin": "/a:/opt/data/.local/bin:/usr/bin",
		"/usr/bin:/bin":                    "/usr/bin:/bin",
		"/opt/tools:/opt/data/.local/bin":  "/opt/tools:/opt/data/.local/bin",
		"/usr/bin:/opt/data/.local/bin/x":  "/usr/bin:/opt/data/.local/bin/x",
		"":                                 "",
	} {
		if got := agentuser.AgentPath(path, "/opt/data"); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}
