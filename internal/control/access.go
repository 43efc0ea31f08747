package control

import (
	"fmt"
	"os"
	"strings"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/proc"
)

// peer holds the credentials of a client at the time of its connection (unix(7), SO_PEERCRED). A user of another user namespace
// appears as the overflow user.
type peer struct {
	pid     int32
	uid     uint32
	shutOut bool // the process belongs to an isolated profile and may not use the socket
}

// fifoPID is the pid of a peer that wrote to the FIFO. The kernel does not tell who writes to a FIFO.
const fifoPID = -1

type peerKey struct{}

// connKey is the context key of a request's connection.
type connKey struct{}

// authorOf returns the author of an order, for the history: the client, and the way in which its request came. The ways are the
// command line, the API, s6 and the FIFO.
func authorOf(rt route, who peer) *client.By {
	if who.pid == fifoPID {
		return &client.By{UID: int(who.uid), Way: client.WayFIFO}
	}
	by := &client.By{UID: int(who.uid), PID: int(who.pid)}
	blocking.Run(blocking.Short, func() {
		name, inside := proc.NameAndOrigin(by.PID)
		if name == "hinit-tools" { // the command hinit runs this program
			name = "hinit"
		}
		by.Program, by.Way = strings.ToValidUTF8(name, "?"), client.WayExec
		if inside {
			by.Way = client.WayAPI
		}
	})
	if strings.Contains(rt.pattern, "/slots/") {
		by.Way = client.WayS6
	}
	return by
}

// access is the permission that a client needs to use a route.
type access int

const (
	mayRead    access = iota // the client reads the status
	mayControl               // the client changes something, or reads more than the status
	mayReplace               // the client decides which program PID 1 becomes
	mayEnd                   // the client ends the container
)

// class is a class of callers with the same rights and limits.
type class int

const (
	rootClass class = iota
	agentClass
	otherClass
	classes
)

type policy struct {
	self, agent uint32
	others      bool // whether other users may read the status
	shutOut     func(pid int, uid uint32, gone func() bool) bool
}

func newPolicy(o Options) policy {
	return policy{self: uint32(os.Geteuid()), agent: o.AgentUID, others: o.Others == config.OthersStatus, shutOut: o.Denies}
}

func (p policy) classOf(who peer) class {
	switch {
	case who.shutOut:
		return otherClass
	case who.uid == 0:
		return rootClass
	case who.uid == p.self, who.uid == p.agent:
		return agentClass
	}
	return otherClass
}

// check returns nil if a peer has the permission need, and otherwise the error for the client.
func (p policy) check(who peer, need access) *client.Error {
	if (need == mayReplace || need == mayEnd) && who.uid != 0 && (p.self == 0 || who.uid != p.self) {
		what := "replace hinit"
		if need == mayEnd {
			what = "end the container"
		}
		return refuse(client.KindNotAllowed, "uid %d may not %s; root may", who.uid, what)
	}
	if who.shutOut {
		return refuse(client.KindNotAllowed, "the isolation of this process keeps it from the control socket; to allow it, set isolation.control of its profile in hinit.yaml")
	}
	if p.classOf(who) != otherClass || need == mayRead && p.others {
		return nil
	}
	what := "control hinit"
	if need == mayRead {
		what = "read the status of hinit"
	}
	allowed := fmt.Sprintf("root and the agent's user (uid %d) may", p.agent)
	if p.self != 0 && p.self != p.agent {
		allowed = fmt.Sprintf("root, the agent's user (uid %d) and hinit's own (uid %d) may", p.agent, p.self)
	}
	return refuse(client.KindNotAllowed, "uid %d may not %s; %s", who.uid, what, allowed)
}
