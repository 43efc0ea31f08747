// Package lifecycle parses the agent's gateway commands, which hinit carries out itself. The shim and hinit-tools use it. It has
// few imports, because the shim runs before every command of the agent. It starts no goroutine.
package lifecycle

import "strings"

// Command is a gateway command as typed after the agent's name.
type Command struct {
	Verb    string // the verb: start, stop, restart or status
	Profile string // name from -p or --profile, or ""
	All     bool   // --all was given; only with stop or restart
	Force   bool   // --force was given; only with start or restart of one gateway
}

// Parse parses the words after the agent's name. It accepts `gateway` with one of the four verbs, at most one profile, and
// --all and --force where the agent allows them. For all other words ok is false. hinit carries out these commands in less time
// than the agent's interpreter takes to start.
func Parse(words []string) (l Command, ok bool) {
	var rest [3]string
	n := 0
	for i := 0; i < len(words); i++ {
		profile, joined := strings.CutPrefix(words[i], "--profile=")
		if words[i] == "-p" || words[i] == "--profile" {
			if i++; i == len(words) {
				return Command{}, false
			}
			profile, joined = words[i], true
		}
		switch {
		case joined && (profile == "" || l.Profile != ""), !joined && n == len(rest):
			return Command{}, false
		case joined:
			l.Profile = profile
		default:
			rest[n] = words[i]
			n++
		}
	}
	if n < 2 || rest[0] != "gateway" {
		return Command{}, false
	}
	l.Verb, l.All, l.Force = rest[1], n == 3 && rest[2] == "--all", n == 3 && rest[2] == "--force"
	switch l.Verb {
	case "status":
		ok = n == 2
	case "start":
		ok = n == 2 || l.Force
	case "stop":
		ok = n == 2 || l.All
	case "restart":
		ok = n == 2 || l.All || l.Force
	}
	if !ok {
		return Command{}, false
	}
	return l, true
}

// ListsProfiles reports whether the words after the agent's name are the command that lists all profiles. hinit carries it out
// if profiles have their own users, because the agent's user can't read their homes.
func ListsProfiles(words []string) bool {
	return len(words) == 2 && words[0] == "profile" && words[1] == "list"
}

// ChangesGateways reports whether the words after the agent's name start, stop or restart gateways, even in a form that [Parse]
// does not accept. It is false for a request for help.
func ChangesGateways(words []string) bool {
	verb := ""
	named, gateway := false, false
	for _, word := range words {
		switch {
		case word == "-h" || word == "--help":
			return false
		case named:
			named = false
		case word == "-p" || word == "--profile":
			named = true
		case word == "" || word[0] == '-' || verb != "":
		case gateway:
			verb = word
		case word == "gateway":
			gateway = true
		default:
			return false // this is another command of the agent
		}
	}
	return verb == "start" || verb == "stop" || verb == "restart"
}
