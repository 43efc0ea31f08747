package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"hinit/client"
	"hinit/client/dial"
)

// hinit runs each service as the gateway of a profile. The CMD "gateway run" starts the root
// profile's gateway, and gateway_state.json files start the others.
type hinit struct {
	program string // Path of hinit.
	before  bool   // Whether this is an older version, for comparison.
}

const (
	hinitName  = "hinit"
	beforeName = "hinit before"
)

func (h hinit) name() string {
	if h.before {
		return beforeName
	}
	return hinitName
}

func (hinit) programs() []string             { return nil }
func (h hinit) version() string              { return firstLine(h.program, "version") }
func (hinit) stopSignal() syscall.Signal     { return syscall.SIGTERM }
func (h hinit) statusOfAll(*site) [][]string { return [][]string{{h.program, "status"}} }

func (h hinit) statusOf(s *site, service string) []string {
	return []string{h.program, "status", h.profile(s, service)}
}

func (h hinit) start(s *site, service string) []string {
	return []string{h.program, "start", h.profile(s, service), "--no-wait"}
}

func (h hinit) stop(s *site, service string) []string {
	return []string{h.program, "stop", h.profile(s, service), "--no-wait"}
}

func (hinit) environment(s *site) []string {
	return []string{"HINIT_CONFIG=" + s.path("hinit.yaml"), "HERMES_HOME=" + s.path("data"), "HINIT_RUNTIME_DIR=" + s.dir}
}

func (h hinit) command(s *site) (argv, env []string) {
	env = h.environment(s)
	if s.asS6 {
		env = append(env, "HINIT_S6=1")
	}
	return []string{h.program, "init", "gateway", "run"}, env
}

// profile returns the profile of a service.
func (hinit) profile(s *site, service string) string {
	if service == s.services[0] {
		return "default"
	}
	return service
}

func (h hinit) prepare(s *site) error {
	restart := "{}"
	if s.fast {
		restart = "{initial: 1us, factor: 1, max: 1us, jitter: 0}"
	}
	budget := s.budget
	if budget == 0 {
		budget = 8 * time.Second // The default of hinit.
	}
	err := s.write("hinit.yaml", fmt.Sprintf(`home: %[1]s/data
agent:
  user: "%[2]d:%[2]d"
  binary: %[3]s
  gateway: %[4]s
  gateway_default: %[5]s
  ready: up
  profile_create: []
boot: {hooks: []}
restart: %[6]s
shutdown: {budget: %[7]s}
`, s.dir, agentID, s.sleeper, yamlList(s.command), yamlList(s.commandOf(s.services[0])), restart, budget), 0o644)
	for _, service := range s.services {
		if err == nil {
			err = h.addProfile(s, service)
		}
	}
	return errors.Join(err, s.chownAll("data", agentID)) // Every start of a container except for the first finds this file.
}

func yamlList(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = "'" + strings.ReplaceAll(w, "'", "''") + "'"
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// adders returns two ways to add a service: starting an existing profile, and creating a profile
// directory and starting it at once.
func (h hinit) adders() []adder {
	return []adder{
		{apiCall, h.makeProfile, h.startProfile},
		{bareMkdir, nil, func(s *site, service string) error {
			return errors.Join(h.makeProfile(s, service), h.startProfile(s, service))
		}},
	}
}

func (hinit) makeProfile(s *site, service string) error {
	return s.write("data/profiles/"+service+"/SOUL.md", "A profile.\n", 0o644)
}

// startProfile starts a profile that hinit may not have seen yet.
func (hinit) startProfile(s *site, service string) error {
	c := dial.New(s.path("control.sock"))
	return until("start of "+service, time.Millisecond, func() (bool, error) {
		_, err := c.Start(context.Background(), service, client.WaitOptions{})
		if errors.Is(err, client.ErrUnknown) {
			return false, nil
		}
		return true, err
	})
}

func (h hinit) addProfile(s *site, service string) error {
	home := "data/"
	if service != s.services[0] {
		home += "profiles/" + service + "/"
	}
	return errors.Join(
		s.write(home+"gateway_state.json", `{"desired_state":"running"}`+"\n", 0o644),
		s.write(home+"SOUL.md", "A profile.\n", 0o644),
	)
}
