package container

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/logs"
	"hinit/internal/container/units"
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/internal/registry"
	"hinit/profiles"
	"hinit/supervisor"
)

var updateNames = flag.Bool("update", false, "write the names that are on the wire now")

func TestTheNamesOnTheWireStay(t *testing.T) {
	var h handover
	fillValue(reflect.ValueOf(&h).Elem())
	data, err := reexec.NewCodec().Encode(&h)
	if err != nil {
		t.Fatal(err)
	}
	var wire any
	if err := json.Unmarshal(data, &wire); err != nil {
		t.Fatal(err)
	}
	got := slices.Compact(slices.Sorted(slices.Values(fieldPaths("", wire))))
	const file = "testdata/handover.names"
	if *updateNames {
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Fields(string(text))
	for _, name := range known {
		if !slices.Contains(got, name) {
			t.Errorf("%s is not handed over any more: keep the name by a tag, or read the old one", name)
		}
	}
	for _, name := range got {
		if !slices.Contains(known, name) {
			t.Errorf("%s is new: go test ./internal/container -update", name)
		}
	}
}

// The operator's choice of one gateway per profile must survive a re-execution. Otherwise hinit reload and a restart of the
// default gateway would start a multiplexer, and two gateways would poll with each token.
func TestGatewaysAreToldTheTopologyAfterAReexec(t *testing.T) {
	cfg, err := config.Load(config.Options{Env: func(string) (string, bool) { return "", false }, Content: []byte("home: " + t.TempDir() + "\n")})
	if err != nil {
		t.Fatal(err)
	}
	before := units.NewMaker(boot.CallerAsAgent(), cfg.Home, nil, false)
	before.SetTopology(profiles.Topology{SetByOperator: profiles.PerProfile})
	old := handover{}
	old.unitsHandover = before.HandOver()
	old.OwnGateways = map[string]bool{"forced": true}
	data, err := reexec.NewCodec().Encode(&old)
	if err != nil {
		t.Fatal(err)
	}
	var state handover
	if err := reexec.NewCodec().Decode(data, &state); err != nil {
		t.Fatal(err)
	}
	after := units.NewMaker(boot.CallerAsAgent(), cfg.Home, nil, false)
	after.TakeOver(state.unitsHandover)
	registry.New(registry.Options{Units: after}).TakeOver(state.registryHandover)
	for _, profile := range []string{profiles.Default, "forced"} {
		spec := after.Gateway(cfg, profiles.Profile{Name: profile, Home: cfg.Home}, nil).Spec
		if got := proc.Getenv(spec.Env, "GATEWAY_MULTIPLEX_PROFILES"); got != "0" {
			t.Errorf("the gateway of %s has GATEWAY_MULTIPLEX_PROFILES=%q", profile, got)
		}
		if forced := slices.Contains(spec.Argv, "--force"); forced != (profile == "forced") {
			t.Errorf("the gateway of %s runs as %q", profile, spec.Argv)
		}
	}
}

// Root's reexec must get its turn between reloads, even if an agent requests one reload after the other.
func TestTheReloadsOfAnAgentKeptRootFromAReexec(t *testing.T) {
	h := &reexecHost{c: &container{registry: registry.New(registry.Options{})}}
	lock := &h.c.registry.ChangeLock
	claimed := make(chan error)
	claim := func(ctx context.Context) {
		release, err := h.LockConfig(ctx)
		if err == nil {
			release()
		}
		claimed <- err
	}
	lock.Lock()
	ends, cancel := context.WithCancel(t.Context())
	go claim(ends)
	cancel()
	if err := <-claimed; err == nil {
		t.Error("a reload that does not end is over")
	}
	soon, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the time limit of a request
	defer cancel()
	go claim(soon)
	for {
		lock.Unlock()
		if !lock.TryLock() {
			break
		}
		select {
		case err := <-claimed:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
	if err := <-claimed; err != nil {
		t.Error(err)
	}
}

// slowTailLogs is a LogSink that passes on the last lines of a service late, as on a busy machine.
type slowTailLogs struct{ *logs.Logs }

func (s slowTailLogs) Tail(name string, done func([]string)) {
	s.Logs.Tail(name, func(lines []string) { time.AfterFunc(100*time.Millisecond, func() { done(lines) }) })
}

// A re-execution must wait for the last lines of a gateway that has just ended. Otherwise the gateway's status never shows
// them.
func TestAReexecWaitsForTheLastLines(t *testing.T) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	defer signal.Stop(children)
	procs, err := proc.New()
	if err != nil {
		t.Fatal(err)
	}
	cfg := new(config.Config)
	c := &container{logs: logs.New(logs.Options{Config: func() *config.Config { return cfg }, Say: t.Logf, Warn: t.Logf, OnOutput: func() {}})}
	c.loop = supervisor.NewLoop(supervisor.Config{Procs: procs, Logs: slowTailLogs{c.logs}, SIGCHLD: children, ShutdownBudget: time.Second})
	go c.loop.Run()
	c.logs.Open("s", "", "", supervisor.KindService)
	unit := supervisor.Unit{Name: "s", Kind: supervisor.KindService, Policy: supervisor.Policy{SingleRun: true}, Spec: proc.Spec{Argv: []string{"/bin/echo", "the last line"}}}
	if err := c.loop.Register(t.Context(), unit, supervisor.WantUp); err != nil {
		t.Fatal(err)
	}
	if _, err := supervisor.AwaitTask(t.Context(), c.loop, "s"); err != nil {
		t.Fatal(err)
	}
	c.awaitLogTails()
	if x := c.loop.Snapshot().Find("s").LastExit; !slices.Equal(x.Tail, []string{"the last line"}) {
		t.Errorf("the re-execution begins with %q", x.Tail)
	}
	c.loop.Post(supervisor.Shutdown{Reason: "the test is over"})
	<-c.loop.Ended()
	_ = c.logs.Close(t.Context())
}

func fieldPaths(path string, v any) (list []string) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			list = append(list, path+"."+key)
			list = append(list, fieldPaths(path+"."+key, value)...)
		}
	case []any:
		for _, value := range v {
			list = append(list, fieldPaths(path, value)...)
		}
	}
	return list
}

func fillValue(v reflect.Value) {
	v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Now()))
		return
	case *os.File:
		v.Set(reflect.ValueOf(os.Stdin))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("reexec") != "-" {
				fillValue(v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillValue(v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			fillValue(v.Index(i))
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillValue(key)
		fillValue(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	default:
	}
}
