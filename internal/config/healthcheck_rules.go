package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ChecksOf returns the checks of a profile's gateway: the checks of all gateways and the profile's own. A check of the profile
// replaces a check of all gateways that has the same name.
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

// DeafOf returns the settings for the detection of a deaf gateway, for one profile. A check of the type deaf replaces these
// settings.
func (c *Config) DeafOf(profile string) Deaf {
	deaf := c.Agent.Deaf
	deaf.Action = c.ProfileOf(profile).Deaf
	for _, o := range c.ChecksOf(profile) {
		if o.Type == CheckDeaf {
			deaf.Action, deaf.After = DeafByCheck, o.Deaf.After
		}
	}
	return deaf
}

// finishChecks reports checks that a service other than a gateway can't have. Some checks need the state file of a gateway. Other
// checks would let the agent decide which program another user runs.
func (l *loader) finishChecks(s *Service, prefix string) {
	for i := range s.Checks {
		c := &s.Checks[i]
		key := fmt.Sprintf("%schecks.%d", prefix, i)
		at := l.cfg.origins[prefix+"checks."+c.Name+".kind"]
		switch {
		case c.Type == CheckState || c.Type == CheckDeaf:
			l.problems.reportAtOrigin(at, "cannot use %s: only gateways write a state file and have a habit; put it into agent.checks, or use another check", key)
		case c.Type == CheckExec && l.doubt != nil && s.User != l.cfg.Agent.User:
			l.problems.reportAtOrigin(at, "cannot set %s here: it runs as %s, which is root's to decide, and %s", key, s.User, l.doubt)
		}
		for _, name := range c.Variables() {
			if _, own := s.Env[name]; !own && !l.cfg.AgentInfluences(s.User) {
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

// Templates returns the texts of a check that may have placeholders.
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

// portType accepts a number, or a template whose placeholder stands for a number.
func portType() valueType {
	isPortOrTemplate := func(s string) bool { return isPort(s) || strings.Contains(s, "{") }
	return textType("port", isPortOrTemplate, "expected a port from 1 to 65535 or {env:NAME}, got %q")
}

func addressType() valueType {
	return textType("IP address", isHost, "expected an IP address or localhost, got %q; hinit asks no name server, use an exec check for other hosts")
}

func isHost(s string) bool {
	_, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return err == nil || s == "localhost"
}

func checkURL(s string) string {
	// check a text in which "1" replaces each placeholder, because "1" is valid as a port and in a path
	u, err := url.Parse(regexp.MustCompile(`\{[a-z_]+(:[A-Za-z_0-9]+)?\}`).ReplaceAllString(s, "1"))
	switch {
	case err != nil:
		return fmt.Sprintf("expected a URL such as http://127.0.0.1:8080/health, got %q", s)
	case u.Scheme == "https":
		return "https is not supported; use an exec check with curl, or an address without TLS in the container"
	case u.Scheme != "http" || u.Host == "" || u.User != nil:
		return fmt.Sprintf("expected a URL such as http://127.0.0.1:8080/health, got %q", s)
	}
	port, host := u.Port(), u.Hostname()
	return cmp.Or(allowEmpty(portType()).check(&port), addressType().check(&host))
}

// ParseStatus reads a list of status codes and ranges of codes.
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
