package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"hinit/internal/testkit"
)

func httpGet(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

func TestDashboardBindRules(t *testing.T) {
	for _, test := range []struct {
		name     string
		args     []string
		env      []string
		auth     bool
		sessions int
	}{
		{"loopback", []string{"--host", "127.0.0.1", "--no-open"}, nil, false, 200},
		{"default host", nil, nil, false, 200},
		{"insecure", []string{"--host", "0.0.0.0", "--insecure"}, []string{"HERMES_DASHBOARD_OAUTH_CLIENT_ID=x"}, false, 200},
		{"basic auth", []string{"--host", "0.0.0.0"}, []string{"HERMES_DASHBOARD_BASIC_AUTH_USERNAME=x"}, true, 401},
		{"oauth", []string{"--host", "0.0.0.0"}, []string{"HERMES_DASHBOARD_OAUTH_CLIENT_ID=x"}, true, 401},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := startGatewayWith(t, t.TempDir(), test.env, append([]string{"dashboard", "--port", "0"}, test.args...)...)
			var port string
			eventually(t, "it listens", func() bool {
				data, err := os.ReadFile(d.stdout)
				line := strings.TrimSpace(string(data))
				port = line[strings.LastIndexByte(line, ':')+1:]
				return err == nil && strings.HasSuffix(string(data), "\n")
			})
			client := http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
			code, body := httpGet(t, &client, "http://127.0.0.1:"+port+"/api/status")
			var status struct {
				Status       string `json:"status"`
				AuthRequired *bool  `json:"auth_required"`
			}
			if err := json.Unmarshal([]byte(body), &status); err != nil || code != 200 ||
				status.Status != "ok" || status.AuthRequired == nil || *status.AuthRequired != test.auth {
				t.Errorf("/api/status: %d %s", code, body)
			}
			if code, _ := httpGet(t, &client, "http://127.0.0.1:"+port+"/api/sessions"); code != test.sessions {
				t.Errorf("/api/sessions: %d", code)
			}
			d.signal(syscall.SIGTERM)
			if code := d.wait(); code != -int(syscall.SIGTERM) {
				t.Errorf("it ends with %d, want death by SIGTERM", code)
			}
		})
	}
}

func TestDashboardRefusesAnOpenBind(t *testing.T) {
	for _, host := range []string{"0.0.0.0", "::", "192.0.2.1", "example.org"} {
		runAgent(t, t.TempDir(), "dashboard", "--host", host, "--port", "0").check(t, 78, "Refusing to bind "+host)
	}
}
