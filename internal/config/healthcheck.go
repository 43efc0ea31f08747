package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Check is a health check of a service, or of all gateways. It says what is tested, how often, and how many equal results in a
// row change the state of the check.
type Check struct {
	Type string // one of the Check types, such as CheckHTTP; it selects one of the fields HTTP to Deaf

	Kind             string        `key:"kind" is:"oneof startup ready alive"` // purpose of the check: startup, ready or alive
	Name             string        `key:"name" is:"name"`                      // name of the check, unique in its service
	Period           time.Duration `key:"period" is:"atleast 100ms"`
	Timeout          time.Duration `key:"timeout" is:"atleast 10ms"`
	InitialDelay     time.Duration `key:"initial_delay" is:"notnegative" reexec:"Delay"`            // time from the start of the process to the first test
	SuccessThreshold int           `key:"success_threshold" is:"between 1 1000" reexec:"Success"`   // number of successes in a row after which the check passes
	FailureThreshold int           `key:"failure_threshold" is:"between 1 100000" reexec:"Failure"` // number of failures in a row after which the check fails
	Jitter           float64       `key:"jitter" is:"between 0 0.5"`                                // random change of the period, up to this fraction of it
	OnFailure        string        `key:"on_failure" is:"oneof restart report park shutdown"`       // effect of a failure: one of the On constants; "" for a ready check

	HTTP    HTTPCheck  `key:"http." fill:"profile"`
	Dial    DialCheck  `key:"" fill:"profile"` // settings of the types tcp and unix
	Command []string   `key:"exec.command" is:"command" fill:"profile"`
	File    FileCheck  `key:"file." fill:"profile"`
	Log     LogCheck   `key:"log."`
	State   StateCheck `key:"state."`
	Deaf    DeafCheck  `key:"deaf."`
}

// The values of [Check].Kind.
const (
	CheckStartup = "startup" // all other checks of the service begin when this check has passed once
	CheckReady   = "ready"   // the service counts as ready while this check passes
	CheckAlive   = "alive"   // when this check fails, hinit performs the action in on_failure
)

// The types of a check. Each is also the key of the check's own settings.
const (
	CheckHTTP  = "http"
	CheckTCP   = "tcp"
	CheckUnix  = "unix"
	CheckExec  = "exec"
	CheckFile  = "file"
	CheckLog   = "log"
	CheckState = "state"
	CheckDeaf  = "deaf"
)

// The values of [Check].OnFailure: what hinit does with the service after a failed check.
const (
	OnFailureRestart  = "restart"
	OnFailureReport   = "report"
	OnFailurePark     = "park"
	OnFailureShutdown = "shutdown"
)

// HTTPCheck sends a GET request to a server in the container. URL, Port, Path and the values of Headers are templates.
type HTTPCheck struct {
	URL      string            `key:"url" is:"url" fill:"."`
	Port     string            `key:"port" is:"port" fill:"."`
	Host     string            `key:"host" is:"address"`
	Path     string            `key:"path" fill:"."`
	Status   string            `key:"status" is:"status"`  // accepted status codes, such as "200-399,404"
	Contains string            `key:"contains"`            // text that the body must contain; "" for none
	Matches  string            `key:"matches" is:"regexp"` // regular expression that the body must match; "" for none
	Headers  map[string]string `key:"headers" is:"headers" fill:"."`
}

// DialCheck connects to a TCP port or a Unix socket, and sends nothing.
type DialCheck struct {
	Port string `key:"tcp.port" is:"port" fill:"."`
	Host string `key:"tcp.host" is:"address"`
	Path string `key:"unix.path" is:"dir" fill:"."` // path of a Unix socket
}

// FileCheck tests that a file exists, or that it was written recently.
type FileCheck struct {
	Path   string        `key:"path" is:"dir" fill:"."`
	MaxAge time.Duration `key:"fresher_than" is:"positive" reexec:"Fresher"` // longest time since the last write to the file; 0: the file need only exist
}

// LogCheck looks for a text in the service's output.
type LogCheck struct {
	Contains      string        `key:"contains"` // text that a line must contain; if Matches is also set, one line must have the text and match
	Matches       string        `key:"matches" is:"regexp"`
	MustNotAppear bool          `key:"never" reexec:"Never"`                 // true: the check fails when such a line appears; false: it fails when no such line appears
	MaxGap        time.Duration `key:"within" is:"positive" reexec:"Within"` // maximum time between two such lines; 0: one line during the run is enough
}

// StateCheck tests gateway_state.json, the file in which a gateway reports its state.
type StateCheck struct {
	MaxHeartbeatAge time.Duration `key:"heartbeat" is:"positive" reexec:"Heartbeat"` // maximum time since the gateway last wrote the file; 0: any time
	Platforms       string        `key:"platforms" is:"oneof any all"`               // whether "any" or "all" chat platforms must be connected; "": no platform
}

// DeafCheck fails when several signs say that a gateway is up but processes no messages.
type DeafCheck struct {
	MinSilence time.Duration `key:"after" is:"atleast 1s" reexec:"After"` // time without processed messages after which a gateway may be deaf
}

var (
	checkKinds = []string{CheckStartup, CheckReady, CheckAlive}
	checkTypes = []string{CheckHTTP, CheckTCP, CheckUnix, CheckExec, CheckFile, CheckLog, CheckState, CheckDeaf}
)

// maxChecks is the maximum number of checks of one service, because each check takes time in PID 1.
const maxChecks = 32

// NewCheck returns a check of a kind with the default settings.
func NewCheck(kind string) Check {
	c := Check{
		Kind: kind, Period: 10 * time.Second, Timeout: time.Second, SuccessThreshold: 1, FailureThreshold: 3, Jitter: 0.05,
		Deaf: DeafCheck{MinSilence: 4 * time.Minute},
		HTTP: HTTPCheck{Path: "/", Status: "200-399", Headers: map[string]string{}},
	}
	if kind != CheckReady {
		c.OnFailure = OnFailureRestart
	}
	return c
}

// Target returns the URL that the check requests, as a template.
func (h HTTPCheck) Target() string {
	if h.URL != "" {
		return h.URL
	}
	return "http://" + hostPort(h.Host, h.Port) + h.Path
}

// Target returns the address that a tcp check connects to, as a template.
func (d DialCheck) Target() string { return hostPort(d.Host, d.Port) }

func hostPort(host, port string) string {
	return net.JoinHostPort(strings.Trim(cmp.Or(host, "127.0.0.1"), "[]"), port)
}

func (d *decoder) decodeChecks(n *yaml.Node, key string) []Check {
	if len(n.Content) > maxChecks && n.Kind == yaml.SequenceNode {
		d.problems.reportAtLine(n.Line, "cannot set %s: a service can have %d checks, here are %d", key, maxChecks, len(n.Content))
		return nil
	}
	seen := map[string]bool{}
	return decodeList(d, n, key, "checks such as [{kind: alive, tcp: {port: 8080}}]", func(item *yaml.Node, one string) (Check, bool) {
		own := decoder{d.problems, map[string]origin{}, d.changeableBy, d.servicesOnly}
		c, ok := own.decodeCheck(item, one)
		if ok && seen[c.Name] {
			d.problems.reportAtLine(item.Line, "cannot use %s: another check is called %q already; give one of them a name", one, c.Name)
			ok = false
		}
		to := one
		if ok {
			seen[c.Name] = true
			to = key + "." + c.Name // messages name the check, not its index
		}
		for path, o := range own.origins {
			d.origins[to+strings.TrimPrefix(path, one)] = o
		}
		return c, ok
	})
}

// decodeCheck decodes one check. The keys that are valid depend on its type.
func (d *decoder) decodeCheck(n *yaml.Node, key string) (c Check, ok bool) {
	kind, types := "", []string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch name := resolveAlias(n.Content[i]).Value; {
		case name == "kind":
			kind = resolveAlias(n.Content[i+1]).Value
		case slices.Contains(checkTypes, name):
			types = append(types, name)
		}
	}
	c = NewCheck(kind)
	if len(types) == 1 {
		c.Type = types[0]
	}
	if !decodeItem(d, n, key, "a check such as {kind: alive, tcp: {port: 8080}}", checkKeys(c.Type), &c) {
		return c, false
	}
	before := len(d.problems.list)
	switch {
	case kind == "":
		d.problems.reportAtLine(n.Line, "cannot use %s: its kind is missing; it is one of %s", key, strings.Join(checkKinds, ", "))
	case len(types) == 0:
		d.problems.reportAtLine(n.Line, "cannot use %s: its type is missing; add one of %s", key, strings.Join(checkTypes, ", "))
	case len(types) > 1:
		d.problems.reportAtLine(n.Line, "cannot use %s: a check has one type, here are %s; write a check for each", key, strings.Join(types, " and "))
	default:
		if reason := c.findContradiction(); reason != "" {
			d.problems.reportAtLine(n.Line, "cannot use %s: %s", key, reason)
		}
	}
	c.Name = cmp.Or(c.Name, c.Kind+"-"+c.Type)
	return c, len(d.problems.list) == before
}

// findContradiction names a missing key of a check, or values that are valid alone but contradict each other. It returns "" if
// the check is valid.
func (c *Check) findContradiction() string {
	h := &c.HTTP
	for _, row := range []struct {
		of    string
		wrong bool
		why   string
	}{
		{c.Type, c.Kind != CheckReady && c.SuccessThreshold != 1, fmt.Sprintf("success_threshold of %s check is always 1", withArticle(c.Kind))},
		{c.Type, c.Kind == CheckReady && c.OnFailure != "", "a ready check that fails makes the service not ready and does nothing else; remove on_failure, or use kind alive"},
		{CheckHTTP, h.URL != "" && (h.Port != "" || h.Host != "" || h.Path != "/"), "http.url has all parts; remove http.host, http.port and http.path"},
		{CheckHTTP, h.URL == "" && h.Port == "", "http.port is missing, or http.url"},
		{CheckHTTP, h.URL == "" && !strings.HasPrefix(h.Path, "/"), fmt.Sprintf("http.path begins with \"/\", got %q", h.Path)},
		{CheckTCP, c.Dial.Port == "", "tcp.port is missing"},
		{CheckUnix, c.Dial.Path == "", "unix.path is missing"},
		{CheckExec, len(c.Command) == 0, "exec.command is missing"},
		{CheckFile, c.File.Path == "", "file.path is missing"},
		{CheckLog, c.Log.Contains == "" && c.Log.Matches == "", "log.contains or log.matches is missing"},
		{CheckLog, c.Log.MustNotAppear && c.Log.MaxGap > 0, "log.never and log.within contradict each other"},
		{CheckState, c.State.MaxHeartbeatAge == 0 && c.State.Platforms == "", "state.heartbeat or state.platforms is missing"},
	} {
		if row.of == c.Type && row.wrong {
			return row.why
		}
	}
	return ""
}

// checkKeys returns the keys that are valid for a type of check: common keys and keys of the type. "" stands for all types.
func checkKeys(of string) []Key {
	return slices.DeleteFunc(slices.Clone(Keys[Check]()), func(k Key) bool {
		typ, _, typed := strings.Cut(k.Path, ".")
		return typed && of != "" && typ != of
	})
}

// ChecksOf returns the checks of a profile's gateway: the checks of all gateways, and the profile's own checks. An own check
// replaces a common check of the same name.
func (c *Config) ChecksOf(profile string) []Check {
	all := slices.Clone(c.Agent.Checks)
	for _, check := range c.Profiles.Overrides[profile].Checks {
		if at := slices.IndexFunc(all, func(o Check) bool { return o.Name == check.Name }); at >= 0 {
			all[at] = check
		} else {
			all = append(all, check)
		}
	}
	return all
}

// DeafDetectionOf returns how hinit detects that a profile's gateway is deaf. A check of the type deaf replaces agent.deaf.
func (c *Config) DeafDetectionOf(profile string) DeafDetection {
	deaf := c.Agent.DeafDetection
	deaf.Action = c.ProfileOf(profile).DeafAction
	for _, o := range c.ChecksOf(profile) {
		if o.Type == CheckDeaf {
			deaf.Action, deaf.MinSilence = DeafDetectionByCheck, o.Deaf.MinSilence
		}
	}
	return deaf
}

// validateChecks reports checks of a gateway's state file for another service. It also reports checks by which the agent could
// choose a program of another user.
func (l *loader) validateChecks(s *Service, prefix string) {
	for i := range s.Checks {
		c := &s.Checks[i]
		key := fmt.Sprintf("%schecks.%d", prefix, i)
		at := l.cfg.origins[prefix+"checks."+c.Name+".kind"]
		switch {
		case c.Type == CheckState || c.Type == CheckDeaf:
			l.problems.reportAtOrigin(at, "cannot use %s: only gateways have a state file and can be deaf; put it into agent.checks, or use another type of check", key)
		case c.Type == CheckExec && l.changeableBy != nil && s.User != l.cfg.Agent.User:
			l.problems.reportAtOrigin(at, "cannot set %s here: it runs as %s, which is root's to decide, and %s", key, s.User, l.changeableBy)
		}
		for _, name := range c.Variables() {
			if _, own := s.Env[name]; !own && !l.cfg.AgentMayFillVariables(s.User) {
				l.problems.reportAtOrigin(at, "cannot use %s: {env:%s} would come from a .env that the agent writes, and the service runs as %s; set %senv.%s, or let it run as %s",
					key, name, s.User, prefix, name, l.cfg.Agent.User)
			}
		}
		for _, text := range c.Templates() {
			if reason := checkTemplate(text, placeholders["service"]); reason != "" {
				l.problems.reportAtOrigin(at, "cannot use %s: %s", key, reason)
			}
		}
	}
}

// Templates returns all texts of the check that may have placeholders.
func (c *Check) Templates() []string {
	texts := []string{c.HTTP.URL, c.HTTP.Port, c.HTTP.Path, c.Dial.Port, c.Dial.Path, c.File.Path}
	for _, name := range sortedKeys(c.HTTP.Headers) {
		texts = append(texts, c.HTTP.Headers[name])
	}
	return slices.Concat(texts, c.Command)
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// portValueType is the type of a key for a port number, or for a template of one.
func portValueType() valueType {
	isPortOrTemplate := func(s string) bool { return isPort(s) || strings.Contains(s, "{") }
	return textType("port", isPortOrTemplate, "expected a port from 1 to 65535 or {env:NAME}, got %q")
}

func hostValueType() valueType {
	return textType("IP address", isHost, "expected an IP address or localhost, got %q; hinit asks no name server, use an exec check for other hosts")
}

func isHost(s string) bool {
	_, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return err == nil || s == "localhost"
}

func checkURL(s string) string {
	// A placeholder becomes "1", which is valid as a port and in a path.
	u, err := url.Parse(regexp.MustCompile(`\{[a-z_]+(:[A-Za-z_0-9]+)?\}`).ReplaceAllString(s, "1"))
	switch {
	case err == nil && u.Scheme == "https":
		return "https is not supported; use an exec check with curl, or an address without TLS in the container"
	case err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil:
		return fmt.Sprintf("expected a URL such as http://127.0.0.1:8080/health, got %q", s)
	}
	port, host := u.Port(), u.Hostname()
	return cmp.Or(allowEmpty(portValueType()).check(&port), hostValueType().check(&host))
}

// ParseStatus parses a list of status codes and ranges of them.
func ParseStatus(s string) (ranges [][2]int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, both := strings.Cut(strings.TrimSpace(part), "-")
		from, err := strconv.Atoi(lo)
		to := from
		if both && err == nil {
			to, err = strconv.Atoi(hi)
		}
		if err != nil || from < 100 || to > 599 || from > to {
			return nil, fmt.Errorf("expected status codes such as 200-399 or 200,204, got %q", s)
		}
		ranges = append(ranges, [2]int{from, to})
	}
	return ranges, nil
}

func checkRegexp(s string) string {
	if _, err := regexp.Compile(s); err != nil {
		return fmt.Sprintf("expected a regular expression (RE2): %v", err)
	}
	return ""
}

func checkHeaders(headers map[string]string) string {
	for _, name := range sortedKeys(headers) {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r) }) {
			return fmt.Sprintf("%q cannot be the name of a header", name)
		}
		if strings.ContainsAny(headers[name], "\r\n") {
			return fmt.Sprintf("the header %s has to be one line", name)
		}
	}
	return ""
}
