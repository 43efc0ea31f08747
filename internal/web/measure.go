package web

import (
	"fmt"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/usage"
)

const (
	measureEvery = 3 * time.Second
	measureOld   = 30 * time.Second // after which an average over the time since the last measurement says nothing of now
)

// meter measures what services use when somebody asks, and not too often.
type meter struct {
	proc func(client.Init) string // nil: nowhere

	mu    sync.Mutex
	at    time.Time
	last  usage.Table
	spare usage.Table
	known measured
}

// measured is what services use, by name.
type measured struct {
	of  map[string]usage.Usage
	cpu bool // with processor times
}

// measure returns what the services of a status use. It is empty where their processes can't be seen.
func (m *meter) measure(st *client.Status) measured {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.proc == nil || now.Sub(m.at) < measureEvery {
		return m.known
	}
	passed := now.Sub(m.at)
	m.at = now
	var all usage.Table
	root := m.proc(st.Init)
	if root != "" {
		all, _ = usage.Read(root, m.spare) // without it nothing is known
	}
	if all == nil {
		m.last, m.spare, m.known = nil, nil, measured{}
		return m.known
	}
	before := m.last
	if passed > measureOld {
		before = nil
	}
	m.known = measured{all.Used(usage.RootsOf(*st, root), before, passed), before != nil}
	m.last, m.spare = all, m.last
	return m.known
}

// usedView is what a service uses as the page shows it: rounded, so that a row changes only when there is news. "" is unknown.
type usedView struct {
	CPU, Memory string
	Processes   int
	Hundredths  int // of a processor, to sort by
	Megabytes   int
}

func (m measured) view(name string) (v usedView) {
	u, is := m.of[name]
	if !is {
		return v
	}
	v.Processes, v.Hundredths, v.Megabytes = u.Processes, int(u.CPU*100+0.5), int(u.Memory/1e6)
	if v.Memory = fmt.Sprintf("%d MB", v.Megabytes); u.Memory < 10e6 {
		v.Memory = fmt.Sprintf("%.1f MB", float64(u.Memory)/1e6)
	}
	if m.cpu {
		v.CPU = fmt.Sprintf("%d %%", v.Hundredths)
	}
	return v
}
