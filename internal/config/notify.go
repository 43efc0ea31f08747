package config

// Notify says how a service tells that it is ready. The zero value: it can't.
type Notify struct {
	FD int // descriptor on which it writes a newline; 0: on none
}

// Set reports whether the service tells by itself when it is ready.
func (n *Notify) Set() bool { return n.FD != 0 }

const (
	firstNotifyFD = 3    // those below are its input and output
	lastNotifyFD  = 1023 // as the supervisor bounds it
)

// notifyFields are the keys of how a service tells about itself.
func notifyFields() []field[Service] {
	return []field[Service]{
		{
			path: "notify.fd", check: checkNotifyFD,
			doc: "Descriptor on which it writes a newline when it is ready, as for s6; see [let a service say that it is ready](../how-to/let-a-service-say-that-it-is-ready.md). " +
				"Not set: it counts as ready while it runs.",
			at: func(s *Service) any { return &s.Notify.FD },
		},
	}
}

// checkNotifyFD wants a descriptor that is free, or 0 for none.
func checkNotifyFD(at any) string {
	if *at.(*int) == 0 {
		return ""
	}
	return checkRange(firstNotifyFD, lastNotifyFD)(at)
}

// finishNotify refuses what contradicts it.
func (l *loader) finishNotify(s *Service, prefix string) {
	if s.Notify.Set() && s.IsTask() {
		l.problems.from(l.cfg.origins[prefix+"notify.fd"], "cannot use %snotify: a task is done when it has ended; remove notify, or once and schedule", prefix)
	}
}
