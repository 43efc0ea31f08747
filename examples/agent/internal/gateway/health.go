package gateway

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const defaultHealthPort = "8642"

// A healthServer answers GET /health on the loopback interface. The methods of a nil healthServer do nothing.
type healthServer struct {
	server *http.Server
	done   chan struct{}
	hangs  atomic.Bool // Whether the server accepts connections but never answers.
}

// startHealth starts the health server on API_SERVER_PORT, if API_SERVER_ENABLED is set. The file .env in the home may set
// both variables, and has priority over the environment, so that the profiles of one container can use different ports. If
// the port is in use, the gateway runs without the health server.
func startHealth(config Config, log logger) *healthServer {
	setting := func(key string) string {
		if value, found := readDotenv(filepath.Join(config.Home.Dir, ".env"), key); found {
			return value
		}
		return config.Getenv(key)
	}
	if !slices.Contains([]string{"1", "true", "yes", "on"}, strings.ToLower(setting("API_SERVER_ENABLED"))) {
		return nil
	}
	port := setting("API_SERVER_PORT")
	if port == "" {
		port = defaultHealthPort
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		log.warn("cannot serve health: %v", err)
		return nil
	}
	h := &healthServer{done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		if h.hangs.Load() {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"status": "ok", "platform": "hermes-agent", "version": config.Version})
	})
	h.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(h.done)
		if err := h.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.warn("health server: %v", err)
		}
	}()
	log.info("health on http://%s/health", listener.Addr())
	return h
}

func (h *healthServer) hang() {
	if h != nil {
		h.hangs.Store(true)
	}
}

func (h *healthServer) close() {
	if h == nil {
		return
	}
	_ = h.server.Close()
	<-h.done
}

// readDotenv returns the value of a key in a file of KEY=VALUE lines, without quotes around it.
func readDotenv(path, key string) (value string, found bool) {
	file, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, rest, isPair := strings.Cut(strings.TrimPrefix(strings.TrimSpace(lines.Text()), "export "), "=")
		if isPair && strings.TrimSpace(name) == key {
			value, found = strings.Trim(strings.TrimSpace(rest), `"'`), true
		}
	}
	return value, found
}
