package config

import (
	"slices"
	"time"
)

// Notify says how a service tells that it is ready. The zero value: it can't.
type Notify struct {
	FD       int           // descriptor on which it writes a newline; 0: on none
	Protocol string        // NotifySystemd, or "" for none
	Timeout  time.Duration // within which it has to say that it is ready; 0: at any time
	Watchdog time.Duration // how often it has to say that it is alive; 0: never
}

// NotifySystemd is the protocol of sd_notify(3).
const NotifySystemd = "systemd"

// Set reports whether the service tells by itself when it is ready.
func (n *Notify) Set() bool { return n.FD != 0 || n.Protocol != "" }

// The types of the checks that notify adds. No file can name them.
const (
	CheckNotify   = "notify"
	CheckWatchdog = "watchdog"
)

// AllChecks are the checks of a service, and the implied checks of its own messages (notify, watchdog).
func (s *Service) AllChecks() []Check {
	checks := slices.Clone(s.Checks)
	own := func(kind, of string, every time.Duration) {
		if every > 0 {
			c := newCheck(kind)
			c.Name, c.Type, c.Period, c.Delay, c.Timeout, c.Failure, c.Jitter = kind+"-"+of, of, every, every, every, 1, 0
			checks = append(checks, c)
		}
	}
	own(CheckStartup, CheckNotify, s.Notify.Timeout)
	own(CheckAlive, CheckWatchdog, s.Notify.Watchdog)
	return checks
}

const (
	firstNotifyFD = 3    // those below are its input and output
	lastNotifyFD  = 1023 // as the supervisor bounds it
)

// notifyFields are the keys of how a service tells about itself.
func notifyFields() []field[Service] {
	return []field[Service]{
		{path: "notify.fd", is: optional(between(firstNotifyFD, lastNotifyFD)), at: func(s *Service) any { return &s.Notify.FD }},
		{path: "notify.protocol", short: true, is: optional(oneOf(NotifySystemd)), at: func(s *Service) any { return &s.Notify.Protocol }},
		{path: "notify.timeout", is: notNegative, at: func(s *Service) any { return &s.Notify.Timeout }},
		{path: "watchdog", is: optional(atLeast(leastWatchdog)), at: func(s *Service) any { return &s.Notify.Watchdog }},
	}
}

// finishNotify refuses what contradicts it.
func (l *loader) finishNotify(s *Service, prefix string) {
	if s.Notify.Set() && s.IsTask() {
		o := l.cfg.origins[prefix+"notify.fd"]
		if s.Notify.Protocol != "" {
			o = l.cfg.origins[prefix+"notify.protocol"]
		}
		l.problems.from(o, "cannot use %snotify: a task is done when it has ended; remove notify, or once and schedule", prefix)
	}
	n := &s.Notify
	if n.Protocol != "" && n.FD != 0 {
		l.problems.from(l.cfg.origins[prefix+"notify.fd"], "cannot use %snotify: it is ready when it says so in one way; remove fd or protocol", prefix)
	}
	for _, own := range []struct {
		key   string
		value time.Duration
		check string
	}{{"notify.timeout", n.Timeout, CheckStartup + "-" + CheckNotify}, {"watchdog", n.Watchdog, CheckAlive + "-" + CheckWatchdog}} {
		switch {
		case own.value == 0:
		case n.Protocol == "":
			l.problems.from(l.cfg.origins[prefix+own.key], "cannot use %s%s: only a service with notify: systemd says that; add it", prefix, own.key)
		case slices.ContainsFunc(s.Checks, func(c Check) bool { return c.Name == own.check }):
			l.problems.from(l.cfg.origins[prefix+own.key], "cannot use %s%s: it is a check called %q, and another one has that name; give that one another", prefix, own.key, own.check)
		}
	}
}

// leastWatchdog is the shortest interval that a watchdog can have.
const leastWatchdog = 100 * time.Millisecond
