package main

const roomsText = `# Rooms

<!-- Generated from deps_test.go and the package comments by internal/gendocs. Do not edit. -->

A room is a package. It imports rooms of lower floors only; a test checks that. [Find your way](../explanation/find-your-way.md) answers single
questions; [how it works](../explanation/how-it-works.md) has the ideas.

## Where to start

Read these files in this order:

`

// firstFiles are the files that a new reader opens, in their order.
var firstFiles = []struct{ file, shows string }{
	{"internal/container/init.go", "PID 1 from its start to its end"},
	{"supervisor/machine.go", "the states of a service, and the events that change them"},
	{"supervisor/loop.go", "the one goroutine that acts"},
	{"internal/registry/registry.go", "what belongs to a service"},
	{"internal/proc/tree.go", "how everything that a service started is ended"},
	{"internal/control/routes.go", "what clients may ask"},
}

const flowText = `
The parts below follow the data, from the start of the container to its clients.

![The packages by floor](../img/house.svg)
`

// parts are the parts of the page of rooms. A pattern is a room, with the rooms in its directory that no earlier pattern has.
var parts = []struct {
	title string
	rooms []string
}{
	{"The container starts", []string{
		"cmd/hinit", "internal/early", "internal/entry", "internal/container", "internal/config", "internal/lease", "internal/boot",
	}},
	{"Profiles become services", []string{
		"profiles", "cmd/hinit-profile", "internal/gateways", "internal/registry", "internal/cronspec", "internal/dotenv", "internal/varfiles",
	}},
	{"Services run", []string{
		"supervisor", "internal/backoff", "internal/proc", "internal/procstat", "internal/usage", "internal/notify", "internal/probe",
		"internal/runs", "internal/reexec", "internal/tuning",
	}},
	{"Output becomes logs", []string{
		"logrotate", "internal/redact", "internal/loglevel", "internal/forward",
	}},
	{"Clients ask", []string{
		"internal/control", "client", "internal/cli", "internal/cmdline", "cmd/hinit-tools", "internal/agentcli", "cmd/hinit-shim", "shim",
		"cmd/hinit-top", "internal/top", "cmd/hinit-web", "internal/web", "internal/metrics", "cmd/hinit-actions", "internal/actions",
		"cmd/hinit-import", "internal/imports", "cmd/hinit-isolate", "internal/isolate", "internal/isolated", "internal/isolation",
	}},
	{"hinit answers as s6", []string{"internal/s6"}},
	{"The task board", []string{"cmd/hinit-kanban", "kanban"}},
	{"Sandboxes", []string{"cmd/hinit-sandbox", "cmd/hinit-sandbox-helper", "sandbox"}},
	{"Below all", []string{
		"internal/account", "internal/fsutil", "internal/trust", "internal/blocking", "internal/guard", "internal/pause", "internal/pty",
		"internal/fault", "internal/version", "internal/testkit", "internal/testproc",
	}},
}
