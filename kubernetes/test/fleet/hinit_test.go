package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	hinit "hinit/client"
)

// ledger records for all hosts which gateways run and how new their data is. It records each start
// when it happens, so no start is missed between samples.
type ledger struct {
	mu      sync.Mutex
	runs    map[string]string // Host that runs a profile, by profile.
	newest  map[string]int    // Number of starts of a profile, which is also the age of its newest data.
	faults  []string
	starts  int
	down    map[string]time.Time     // Time since which a profile has no gateway.
	longest map[string]time.Duration // Longest time without a gateway, by profile.
}

func newLedger() *ledger {
	return &ledger{runs: map[string]string{}, newest: map[string]int{}, down: map[string]time.Time{}, longest: map[string]time.Duration{}}
}

// recordStart records a start of a profile on a host, and the age of that host's data.
func (l *ledger) recordStart(profile, host string, data int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.runs[profile]; other != "" {
		l.faults = append(l.faults, fmt.Sprintf("%s runs on %s and on %s", profile, other, host))
	}
	if data != l.newest[profile] {
		l.faults = append(l.faults, fmt.Sprintf("%s starts on %s with data %d, and the newest is %d", profile, host, data, l.newest[profile]))
	}
	l.runs[profile], l.newest[profile] = host, data+1
	l.starts++
	if since, is := l.down[profile]; is {
		l.longest[profile] = max(l.longest[profile], time.Since(since))
		delete(l.down, profile)
	}
}

func (l *ledger) recordEnd(profile, host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs[profile] == host {
		delete(l.runs, profile)
		l.down[profile] = time.Now()
	}
}

// runningOn returns the host of each running profile.
func (l *ledger) runningOn() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.runs)
}

func (l *ledger) violations() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.faults)
}

// fakeInit imitates the hinit of a pod: it has the same socket and API, but runs no processes.
type fakeInit struct {
	host, home string
	ledger     *ledger
	readyAfter time.Duration
	server     *http.Server
	busy       atomic.Bool
	user       int // User ID that owns the written files; 0 for root.

	mu                 sync.Mutex
	services           map[string]*hinit.Service
	changed            map[string]uint64 // Number of the last change of each profile.
	now                uint64
	listChanged        uint64 // Number of the last change of the list of profiles.
	ended              bool
	askedRuns          map[string]uint64 // Number of the last run that a client has asked for, by profile.
	startOnSecondQuery bool              // Whether the gateway starts between two steps of its host, see answer.
}

func startFakeInit(host, home, socket string, user int, l *ledger) (*fakeInit, error) {
	f := &fakeInit{host: host, home: home, user: user, ledger: l, readyAfter: 100 * time.Millisecond, services: map[string]*hinit.Service{}, changed: map[string]uint64{}, askedRuns: map[string]uint64{}}
	for _, dir := range []string{filepath.Join(home, "profiles"), filepath.Dir(socket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	_ = os.Remove(socket) // An earlier pod may have left this file.
	listener, err := net.Listen("unix", socket)
	if err == nil && user != 0 {
		err = errors.Join(os.Chown(filepath.Join(home, "profiles"), user, user), os.Chmod(socket, 0o777))
	}
	if err != nil {
		return nil, err
	}
	f.rescan()
	f.mu.Lock()
	for name, s := range f.services {
		if f.intent(name) {
			f.start(name, s)
		}
	}
	f.mu.Unlock()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(hinit.Status{Init: hinit.Init{Home: f.home}})
	})
	mux.HandleFunc("GET /v1/status/follow", f.streamStatus)
	mux.HandleFunc("POST /v1/rescan", func(w http.ResponseWriter, _ *http.Request) { f.rescan(); w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /v1/services/{name}", f.serveStatus)
	mux.HandleFunc("POST /v1/services/{name}/start", f.commandHandler(f.start))
	mux.HandleFunc("POST /v1/services/{name}/stop", f.commandHandler(f.stop))
	mux.HandleFunc("POST /v1/services/{name}/restart", f.commandHandler(func(name string, s *hinit.Service) { f.stop(name, s); f.start(name, s) }))
	f.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = f.server.Serve(listener) }()
	return f, nil
}

// end ends the container. The volume keeps which gateways should run.
func (f *fakeInit) end() {
	_ = f.server.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for name, s := range f.services {
		if s.State == hinit.StateUp {
			f.ledger.recordEnd(name, f.host)
		}
	}
}

func (f *fakeInit) stateFile(name string) string {
	return filepath.Join(f.home, "profiles", name, "gateway_state.json")
}

// intent reports whether a gateway should run, from its file on the volume.
func (f *fakeInit) intent(name string) bool {
	text, err := os.ReadFile(f.stateFile(name))
	return err == nil && strings.Contains(string(text), "running")
}

func (f *fakeInit) rescan() {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, _ := os.ReadDir(filepath.Join(f.home, "profiles"))
	there := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if _, err := os.Stat(filepath.Join(f.home, "profiles", name, "SOUL.md")); err != nil {
			continue
		}
		there[name] = true
		if f.services[name] == nil {
			f.services[name] = &hinit.Service{Name: "gateway-" + name, Profile: name, Kind: hinit.KindGateway, State: hinit.StateDown, Want: hinit.WantDown, Since: time.Now()}
			f.now++
			f.listChanged = f.now
		}
	}
	for name, s := range f.services {
		if !there[name] {
			if s.State == hinit.StateUp {
				f.ledger.recordEnd(name, f.host)
			}
			delete(f.services, name)
			f.now++
			f.listChanged = f.now
		}
	}
}

// dataFile returns the file with the number of starts. It stands for the data of a real profile,
// which changes with each run.
func (f *fakeInit) dataFile(name string) string {
	return filepath.Join(f.home, "profiles", name, "data")
}

func (f *fakeInit) start(name string, s *hinit.Service) {
	if f.ended || s.State == hinit.StateUp {
		return
	}
	text, _ := os.ReadFile(f.dataFile(name))
	data, _ := strconv.Atoi(string(text)) // A new profile has no such file.
	s.Want = hinit.WantUp
	if f.write(f.stateFile(name), `{"desired_state":"running"}`) != nil || f.write(f.dataFile(name), strconv.Itoa(data+1)) != nil {
		s.State = hinit.StateBackoff // Writing fails if the volume is full.
		f.touch(name)
		time.AfterFunc(500*time.Millisecond, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if s.State == hinit.StateBackoff && f.services[name] == s {
				f.start(name, s)
			}
		})
		return
	}
	f.ledger.recordStart(name, f.host, data)
	s.RunNumber++
	s.State, s.Want, s.Since, s.PID, s.Ready, s.ReportsReadiness, s.MemoryBytes = hinit.StateUp, hinit.WantUp, time.Now(), 1, false, true, 40<<20
	f.touch(name)
	time.AfterFunc(f.readyAfter, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s.State == hinit.StateUp {
			s.Ready = true
			f.touch(name)
		}
	})
}

// write replaces a file completely or not at all.
func (f *fakeInit) write(file, text string) error {
	err := os.WriteFile(file+".new", []byte(text), 0o600)
	if err == nil && f.user != 0 {
		err = os.Chown(file+".new", f.user, f.user)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	return err
}

func (f *fakeInit) stop(name string, s *hinit.Service) {
	if s.State == hinit.StateUp {
		f.ledger.recordEnd(name, f.host)
	}
	_ = f.write(f.stateFile(name), `{"desired_state":"stopped"}`)
	s.State, s.Want, s.Since, s.PID, s.Ready, s.MemoryBytes = hinit.StateDown, hinit.WantDown, time.Now(), 0, false, 0
	f.touch(name)
}

func (f *fakeInit) touch(name string) {
	f.now++
	f.changed[name] = f.now
}

// commandHandler returns a handler for commands to one service.
func (f *fakeInit) commandHandler(do func(string, *hinit.Service)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.PathValue("name"), "gateway-")
		f.mu.Lock()
		defer f.mu.Unlock()
		s := f.services[name]
		if s == nil || f.ended {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(hinit.ErrorReply{Error: hinit.Error{Kind: hinit.KindUnknown, Message: "no such profile"}})
			return
		}
		do(name, s)
		_ = json.NewEncoder(w).Encode(s)
	}
}

// serveStatus serves the status of one service. If behind is set, it starts the gateway just before the
// second answer, that is, between the host's check and its move of the data.
func (f *fakeInit) serveStatus(w http.ResponseWriter, r *http.Request) {
	f.commandHandler(func(string, *hinit.Service) {})(w, r)
	name := strings.TrimPrefix(r.PathValue("name"), "gateway-")
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.services[name]; s != nil {
		if f.startOnSecondQuery && f.askedRuns[name] == s.RunNumber {
			f.startOnSecondQuery = false
			f.start(name, s)
		}
		f.askedRuns[name] = s.RunNumber
	}
}

// streamStatus streams the status and its changes, at most one line a second.
func (f *fakeInit) streamStatus(w http.ResponseWriter, r *http.Request) {
	var seen, whole uint64
	for first := true; r.Context().Err() == nil; first = false {
		f.mu.Lock()
		line := hinit.StatusChange{IsComplete: first || f.listChanged > whole, Services: []hinit.Service{}, Init: hinit.Init{Home: f.home}}
		for name, s := range f.services {
			if line.IsComplete || f.changed[name] > seen {
				line.Services = append(line.Services, *s)
			}
		}
		seen, whole = f.now, f.listChanged
		f.mu.Unlock()
		if json.NewEncoder(w).Encode(line) != nil {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(time.Second):
		}
	}
}

// create creates the home of a profile, as hinit profile create does.
func (f *fakeInit) create(_ context.Context, name string) error {
	home := filepath.Join(f.home, "profiles", name)
	if _, err := os.Stat(home); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("profile %s exists", name), err)
	}
	temp := filepath.Join(f.home, "profiles", ".new-"+name)
	if err := errors.Join(os.RemoveAll(temp), os.Mkdir(temp, 0o755), os.WriteFile(filepath.Join(temp, "SOUL.md"), []byte("# "+name), 0o600)); err != nil {
		return err
	}
	return os.Rename(temp, home)
}
