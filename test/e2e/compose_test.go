package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func compose(t *testing.T, env []string, args ...string) result {
	t.Helper()
	dir, err := makeContext()
	if err != nil {
		t.Fatal(err)
	}
	program := []string{"docker-compose"}
	if docker("compose", "version").code == 0 {
		program = []string{"docker", "compose"}
	} else if _, err := exec.LookPath("docker-compose"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is neither docker compose nor docker-compose")
		}
		t.Skip("there is neither docker compose nor docker-compose")
	}
	args = append(append(program, "-p", "hinit-e2e-"+runID, "-f", filepath.Join(dir, "docker", "compose.yaml")), args...)
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	r := command(cmd)
	if r.code != 0 {
		t.Fatal(r)
	}
	return r
}

// TestCompose checks "make up" and "make down" with another name and port.
func TestCompose(t *testing.T) {
	parallel(t)
	name := "hinit-e2e-" + runID + "-compose"
	env := []string{"HINIT_NAME=" + name, "HINIT_DASHBOARD_PORT=0", "ARCH=" + runtime.GOARCH}
	t.Cleanup(func() {
		compose(t, env, "down", "-v", "--rmi", "all")
		if r := docker("inspect", name); r.code == 0 {
			t.Errorf("the container is still there after down: %v", r)
		}
		if r := docker("volume", "inspect", name+"-data"); r.code == 0 {
			t.Errorf("the volume is still there after down -v: %v", r)
		}
	})
	compose(t, env, "up", "-d", "--build")
	c := &container{t: t, id: name}
	c.awaitUp("gateway-default", "dashboard")
	var grace struct {
		StopTimeout   int
		RestartPolicy struct{ Name string }
		Health        struct{ Test []string }
	}
	if err := json.Unmarshal([]byte(c.inspect(`{"StopTimeout":{{json .Config.StopTimeout}},"RestartPolicy":{{json .HostConfig.RestartPolicy}},"Health":{{json .Config.Healthcheck}}}`)), &grace); err != nil {
		t.Fatal(err)
	}
	if grace.StopTimeout != 15 || grace.RestartPolicy.Name != "unless-stopped" || strings.Join(grace.Health.Test, " ") != "CMD hinit healthcheck" {
		t.Errorf("%+v", grace)
	}
	c.awaitHealthy()
	address := mustDocker(t, "port", name, "9119/tcp") // The engine chose this free port.
	eventually(t, settle, func() error {               // Send the request from the host.
		reply, err := http.Get("http://" + address + "/api/status")
		if err != nil {
			return err
		}
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		if err == nil && !strings.Contains(string(body), `"auth_required":true`) {
			err = fmt.Errorf("the dashboard says %s", body)
		}
		return err
	})
	for _, profile := range []string{"coder", "writer"} {
		c.mustExec("hermes", "profile", "create", profile)
	}
	c.mustExec("hinit", "start", "coder", "writer")
	c.mustExec("hinit", "stop", "writer")

	// Create a new container on the old volume, as an image update does.
	compose(t, env, "up", "-d", "--force-recreate")
	c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "up", "gateway-writer": "down"})
	compose(t, env, "stop")
	if code := c.inspect("{{.State.ExitCode}}"); code != "0" {
		t.Errorf("stopped with exit code %s", code)
	}
	compose(t, env, "start")
	c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "up", "gateway-writer": "down"})
}
