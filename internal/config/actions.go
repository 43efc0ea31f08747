package config

import (
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// Events of a service after which hinit can run actions.
const (
	EventCrashLoop = "crash-loop" // the service has ended too often soon after a start
	EventParked    = "parked"     // the service stays down until an operator acts
	EventUnhealthy = "unhealthy"  // a startup or alive check of the service fails, or hinit restarts it because of a check
	EventReady     = "ready"      // the service has become ready
	EventFailed    = "failed"     // the service can't be started as configured, or won't be started again
	EventOOM       = "oom"        // the kernel has killed the service because memory ran out
	EventStale     = "stale"      // an environment file of the service has changed since its start
)

// ActionEvents lists the keys that are valid in [Actions].
var ActionEvents = []string{EventCrashLoop, EventParked, EventUnhealthy, EventReady, EventFailed, EventOOM, EventStale}

// Actions holds the actions to carry out after each event.
type Actions map[string][]Action

// Action is a command to run, or a web request to send, after an event of a service.
type Action struct {
	Exec       []string      `key:"exec" is:"command"`      // command to run; nil for a webhook
	Webhook    string        `key:"webhook" is:"webhook"`   // URL that receives a request; "" for a command
	SecretFile string        `key:"secret_file" is:"path?"` // file with the key that signs the request; "" for no signature
	Timeout    time.Duration `key:"timeout" is:"positive"`
}

// ActionsName is the name of the built-in service that carries out actions. hinit adds it by itself if hinit.yaml has an action.
const ActionsName = "hinit-actions"

// actionsStateVar is the environment variable with the path of the state file of the service [ActionsName]. The file contains
// pending actions.
const actionsStateVar = "HINIT_ACTIONS_STATE"

const maxActions = 16

// hasActions reports whether hinit.yaml has any action.
func (c *Config) hasActions() bool {
	has := len(c.Actions)+len(c.Agent.Actions) > 0
	for _, p := range c.Profiles.Overrides {
		has = has || len(p.Actions) > 0
	}
	for _, s := range c.Services {
		has = has || len(s.Actions) > 0
	}
	return has
}

// fillActions sets the command and the environment of the service that carries out actions. The service runs as the agent's user
// and reads hinit.yaml itself.
func (l *loader) fillActions(s *Service) {
	path := l.cfg.Path
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	s.Command = []string{ActionsName, "serve", "--config", path}
	if l.ServicesOnly {
		s.Command = append(s.Command, "--plain")
		return
	}
	s.Env["HERMES_HOME"] = "{home}"
}

func (a *Action) validKeys() []Key {
	return slices.DeleteFunc(slices.Clone(Keys[Action]()), func(k Key) bool {
		return a.Webhook == "" && (k.Path == "webhook" || k.Path == "secret_file") || a.Webhook != "" && k.Path == "exec"
	})
}

// NewAction returns an action with the default timeout.
func NewAction() Action { return Action{Timeout: 30 * time.Second} }

func isWebhook(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

// decodeActions decodes a mapping from events to one action or a list of actions each.
func (d *decoder) decodeActions(n *yaml.Node, key string) Actions {
	out := Actions{}
	for _, e := range d.entries(n, key+".", ActionEvents) {
		if !slices.Contains(ActionEvents, e.key) {
			d.reportUnknownKey(e.line, key+".", e.key, ActionEvents, nil)
			continue
		}
		key, items := key+"."+e.key, []*yaml.Node{e.value}
		if e.value.Kind == yaml.SequenceNode {
			items = e.value.Content
		}
		if len(items) > maxActions {
			d.problems.reportAtLine(e.line, "cannot set %s: an event can have %d actions, here are %d", key, maxActions, len(items))
			continue
		}
		out[e.key] = decodeList(d, &yaml.Node{Kind: yaml.SequenceNode, Content: items}, key, "actions", d.decodeAction)
	}
	return out
}

func (d *decoder) decodeAction(n *yaml.Node, key string) (a Action, ok bool) {
	a = NewAction()
	if !decodeItem(d, n, key, `an action such as {exec: [notify]} or {webhook: "https://example.org/hooks/1"}`, Keys[Action](), &a) {
		return a, false
	}
	switch {
	case (a.Exec == nil) == (a.Webhook == ""):
		d.problems.reportAtLine(n.Line, "cannot use %s: an action has either exec or webhook", key)
		return a, false
	case a.Exec != nil && a.SecretFile != "":
		d.problems.reportAtLine(n.Line, "cannot use %s: secret_file is for a webhook; remove it", key)
		return a, false
	}
	return a, true
}
