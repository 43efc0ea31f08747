package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"hinit/examples/agent/internal/knobs"
)

const dashboardUsage = "dashboard [--host HOST] [--port PORT] [--no-open] [--insecure]"

// cmdDashboard serves until a signal kills the process. Like the real dashboard, it handles no signals.
func cmdDashboard(c *call) int {
	flags := flag.NewFlagSet("dashboard", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	host := flags.String("host", "127.0.0.1", "")
	port := flags.Int("port", 9119, "")
	insecure := flags.Bool("insecure", false, "")
	flags.Bool("no-open", false, "") // The flag has no effect, because this dashboard never opens a browser.
	if err := flags.Parse(c.args); err != nil {
		return c.fail(exitUsage, err)
	}
	authRequired := !isLoopback(*host) && !*insecure
	providers := authProviders(os.Getenv)
	if authRequired && len(providers) == 0 {
		fmt.Fprintf(c.stderr, "Refusing to bind %s without authentication: name a provider in the environment "+
			"(HERMES_DASHBOARD_BASIC_AUTH_USERNAME or HERMES_DASHBOARD_OAUTH_CLIENT_ID) or pass --insecure\n", *host)
		settings, err := knobs.Load(os.Getenv, c.home.Dir)
		if err != nil {
			return c.fail(exitConfig, err)
		}
		return settings.DashboardCode
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, strconv.Itoa(*port)))
	if err != nil {
		return c.fail(exitFailed, fmt.Errorf("cannot serve the dashboard: %w", err))
	}
	fmt.Fprintf(c.stdout, "Dashboard on http://%s\n", listener.Addr())
	server := &http.Server{Handler: dashboardHandler(authRequired, providers), ReadHeaderTimeout: 5 * time.Second}
	return c.fail(exitFailed, fmt.Errorf("cannot serve the dashboard: %w", server.Serve(listener)))
}

// dashboardHandler answers the two paths that health checks use. /api/status needs no login, and /api/sessions needs one.
func dashboardHandler(authRequired bool, providers []string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/status", func(w http.ResponseWriter, _ *http.Request) {
		replyJSON(w, http.StatusOK, map[string]any{"status": "ok", "auth_required": authRequired, "auth_providers": providers})
	})
	mux.HandleFunc("GET /api/sessions", func(w http.ResponseWriter, _ *http.Request) {
		if authRequired {
			replyJSON(w, http.StatusUnauthorized, map[string]any{"error": "login required"})
			return
		}
		replyJSON(w, http.StatusOK, map[string]any{"sessions": []string{}})
	})
	return mux
}

func replyJSON(w http.ResponseWriter, status int, body map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func authProviders(getenv func(string) string) []string {
	providers := []string{}
	if getenv("HERMES_DASHBOARD_BASIC_AUTH_USERNAME") != "" {
		providers = append(providers, "basic")
	}
	if getenv("HERMES_DASHBOARD_OAUTH_CLIENT_ID") != "" {
		providers = append(providers, "oauth")
	}
	return providers
}
