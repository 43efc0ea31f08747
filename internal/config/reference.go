package config

import (
	"fmt"
	"strings"
	"time"
)

// Reference returns the reference of hinit.yaml and its environment variables as a Markdown document. It is made from the
// schema that decodes the file.
func Reference() string {
	var b strings.Builder
	b.WriteString(`# hinit.yaml

<!-- Generated from the configuration schema. Do not edit. -->

` + "`" + DefaultPath + "`" + `, or the file that ` + "`HINIT_CONFIG`" + ` names. Every key is optional; without a file the defaults apply, which
are those of the Hermes image. A key that is not listed here, a key given twice and a value of the wrong type are
errors. The environment wins over the file; an empty variable counts as unset. ` + "`hinit config`" + ` shows the values in
force and where each came from.

[hinit run](../how-to/supervise-anything.md) takes the same file without the keys of the agent and with other defaults for what a service
is run as and where.

Durations are written as Go writes them: ` + "`500ms`, `30s`, `1m30s`" + `. A command is a list of words, not a shell line.

Commands, directories and variables may contain placeholders: ` + "`{agent}`" + ` (agent.binary), ` + "`{home}`" + ` (home),
` + "`{profile}`" + ` and ` + "`{profile_home}`" + ` (name and home of the profile), ` + "`{to}`" + ` (the new name, in a rename). The table says
which of them a key knows. ` + "`{{word}}`" + ` stands for the literal text ` + "`{word}`, `{{{word}}}` for `{{word}}`" + `,
and ` + "`${word}`" + ` is left alone for a shell.

## Who may write the file

Where hinit is root, the file says what root does. Keys that are marked as root's decide what runs as whom, or where root works. They
count only in a file that nobody but root can change: the file and every directory above it, links on the way included, belong to
root and cannot be written by their group or by others. A read-only mount will do, and so will a sticky directory of root's such as
` + "`/tmp`" + `. In any other file such a key is an error, at the boot and at each reload, which names what to change:

` + "```text" + `
/opt/data/hinit.yaml:4: cannot set services.sync.user here: it is root's to decide, and /opt/data belongs to uid 10000; chown root
/opt/data, or keep the file where only root can write, or mount it read-only
` + "```" + `

All other keys count wherever the file lies, and so does a key of root's that is set to what it is without the file. The environment of
the container is root's word. An init that isn't root has nothing to protect and asks for none of this.

## Keys

`)
	root := defaults()
	table(&b, "", configFields(), root, func(f *field[Config]) string { return defaultText(f, root) })

	b.WriteString(`
## Logs of one profile

` + "`logs.profiles`" + ` is a mapping of names of profiles to limits of their own. What is not said there is as for all logs.

`)
	table(&b, "logs.profiles.NAME.", profileLogFields(), &root.Logs.LogLimits, func(f *field[LogLimits]) string {
		return "as `" + f.inherits + "`"
	})

	b.WriteString(`
## One profile

` + "`profiles`" + ` is also a mapping of names of profiles to settings of their own. A name need not be that of a profile: the profile may come
later. What is not said there is as for all gateways.

` + "```yaml" + `
profiles:
  coder: {restart: {max: 5m}, stop: {grace: 60s}, needs: [db], env: {LANG: C.UTF-8}}
` + "```" + `

`)
	profile := newProfile(root)
	table(&b, "profiles.NAME.", profileFields(), &profile, func(f *field[Profile]) string {
		if f.inherits != "" {
			return "as `" + f.inherits + "`"
		}
		return defaultText(f, &profile)
	})

	b.WriteString(`
## Hooks

` + "`boot.hooks`" + ` is a list of commands that run at boot, as the agent's user unless they say otherwise, with the container's
environment. They run one after the other, but for those [below](#steps-that-are-skipped). What they write on their standard output goes to the
container's standard error. A hook that fails is a warning; ` + "`required`" + `, or ` + "`boot.strict`" + `, makes it stop the container.

` + "```yaml" + `
boot:
  hooks:
    - {command: [/usr/local/bin/fetch-config, "{home}"], timeout: 10s, required: true}
` + "```" + `

`)
	hook := newHook()
	defaultHooks(&b)
	table(&b, "boot.hooks[].", hookFields(), &hook, func(f *field[Hook]) string {
		switch {
		case f.inherits != "":
			return "as `" + f.inherits + "`"
		case f.path == "command":
			return ""
		default:
			return defaultText(f, &hook)
		}
	})

	b.WriteString(`
### Steps that are skipped

A hook with ` + "`inputs`" + ` runs when one of these has changed since its last success, and else is ` + "`skipped, unchanged`" + ` in ` + "`hinit status`" + `:

- the files that ` + "`inputs`" + ` name: a path is a file or everything in a directory; ` + "`*`, `?` and `[a-z]`" + ` stand for characters of one
  name, ` + "`**`" + ` for any number of directories. Names, permissions and content count, times don't. A missing file counts, too;
- its command, with the program and the script that the command names;
- its environment, without ` + "`HOSTNAME`, `TERM`, `PWD`, `PUID`, `PGID`, `HERMES_UID` and `HERMES_GID`" + ` and what only hinit reads;
- the version of hinit.

List all that the result depends on, and what the step writes below the data directory. hinit runs the step when it is not sure: when an
input is a link on the data volume, a socket or not readable for the agent's user, when there are more than 20,000 files or 256 MiB of
them, or when they take more than 3 s to read. ` + "`skills_sync.py`" + ` also runs each time when ` + "`config.yaml`" + ` has ` + "`external_dirs`" + `.

Hooks with inputs that follow each other run side by side, unless two of them have an input below the data directory in common.

The record is ` + "`.hinit-boot.json`" + ` in the data directory. It is the agent's: delete it to run all steps at the next start. So only a hook that
runs as the agent's user can have inputs; hooks of root run at every boot. A step that has succeeded is recorded with its inputs as they
are after it.

## Services

` + "`services`" + ` is a mapping of names to what hinit supervises besides the gateways. A name is made of ` + "`a` to `z`, `0` to `9`, `_` and `-`" + `;
names that begin with ` + "`gateway-`" + `, ` + "`cmd` and `main-hermes`" + ` are taken. What a service does not say it inherits from the
keys above.

`)
	service := newService(root, "NAME")
	table(&b, "services.NAME.", serviceFields(), &service, func(f *field[Service]) string {
		switch {
		case f.inherits != "":
			return "as `" + f.inherits + "`"
		case f.alias != "":
			return "as `services.NAME." + f.alias + "`"
		case f.path == "enabled" || f.path == "command":
			return ""
		default:
			return defaultText(f, &service)
		}
	})

	checkReference(&b)
	b.WriteString(`
### The dashboard

The service ` + "`dashboard`" + ` exists without being written down. It runs ` + "`{agent} dashboard --host HOST --port PORT --no-open`" + `,
is enabled by ` + "`HERMES_DASHBOARD`" + ` and writes to the container log only. A ` + "`services.dashboard`" + ` in the file changes it
key by key; a command there replaces the whole command, and the variables for its address then have no effect.

### The task board

The service ` + "`kanban`" + ` exists where ` + "`HINIT_KANBAN`" + ` is set, without being written down. It runs ` + "`hinit-kanban serve`" + `, which
[dispatches the tasks of the board](../how-to/move-the-dispatcher-out-of-the-gateway.md), and is enabled by that variable. While it is
enabled the gateways get ` + "`HERMES_KANBAN_DISPATCH_IN_GATEWAY=0`" + `, unless ` + "`agent.env`" + ` sets that variable.

### The sandboxes

The service ` + "`sandbox`" + ` exists where ` + "`HINIT_SANDBOX`" + ` is set, without being written down. It runs ` + "`hinit-sandbox serve`" + ` as root,
which [owns the sandboxes of the volume](../explanation/sandboxes.md), and is enabled by that variable.

### The status page

The service ` + "`hinit-web`" + ` exists where ` + "`HINIT_WEB`" + ` is set, without being written down. It runs ` + "`hinit-web serve`" + `, which
[serves the status page](../how-to/open-the-status-page.md), and is enabled by that variable.

### Forwarding

The service ` + "`hinit-forward`" + ` exists where ` + "`HINIT_FORWARD`" + ` is set, without being written down. It runs ` + "`hinit-web forward`" + `, which
[sends logs and events elsewhere](../how-to/forward-logs.md), and is enabled by that variable.
`)
	actionReference(&b)
	b.WriteString(`
## Runs

` + "`runs`" + ` is a mapping of names to commands that root and the agent's user may have run once, by the
[control API](control-api.md#runs). They run as the agent's user. ` + "`kanban-worker`" + `, which works on one task of the board, exists
without being written down; ` + "`HERMES_BIN`" + ` replaces its first word.

`)
	run := newRun()
	run.Command = kanbanWorker()
	table(&b, "runs.NAME.", runFields(), &run, func(f *field[Run]) string { return defaultText(f, &run) })

	b.WriteString(`
## Environment variables

| Variable | Key | Meaning |
|---|---|---|
| ` + "`HINIT_CONFIG`" + ` | | The configuration file; it must exist. |
`)
	for _, f := range configFields() {
		if f.env != "" {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", f.env, f.path, f.doc)
		}
	}
	b.WriteString("| `HERMES_DASHBOARD` | `services.dashboard.enabled` | `1`, `true` or `yes` runs the dashboard. |\n")
	b.WriteString("| `HINIT_KANBAN` | `services.kanban.enabled` | `1`, `true` or `yes` dispatches the tasks of the board outside the gateways. |\n")
	b.WriteString("| `HINIT_WEB` | `services.hinit-web.enabled` | `1`, `true` or `yes` serves the status page. |\n")
	b.WriteString("| `HINIT_FORWARD` | `services.hinit-forward.enabled` | `1`, `true` or `yes` sends logs and events to `HINIT_FORWARD_TO`. |\n")
	b.WriteString("| `HINIT_SANDBOX` | `services.sandbox.enabled` | `1`, `true` or `yes` runs the service that owns the sandboxes of the volume. |\n")
	b.WriteString("| `HERMES_BIN` | `runs.kanban-worker.command` | First word of the command of a worker. |\n")
	for _, v := range dashboardVars {
		fmt.Fprintf(&b, "| `%s` | `services.dashboard.command` | %s |\n", v.name, v.doc)
	}
	return b.String()
}

// defaultHooks writes the hooks of the image the way they would stand in the file.
func defaultHooks(b *strings.Builder) {
	b.WriteString("The default, for a file with a list of its own:\n\n```yaml\nboot:\n  hooks:\n")
	for _, h := range imageHooks() {
		fmt.Fprintf(b, "    - command: %s\n      if_exists: %s\n      inputs:\n", flow(&h.Command), flowWord(h.IfExists))
		for _, p := range h.Inputs {
			fmt.Fprintf(b, "        - %s\n", flowWord(p))
		}
	}
	b.WriteString("```\n\n")
}

func table[T any](b *strings.Builder, base string, fields []field[T], root *T, def func(*field[T]) string) {
	b.WriteString("| Key | Type | Default | Environment | Meaning |\n|---|---|---|---|---|\n")
	for i := range fields {
		f := &fields[i]
		typ, env := f.typeName(root), ""
		if f.holes != nil {
			holes := make([]string, len(f.holes))
			for i, hole := range f.holes {
				holes[i] = "`{" + hole + "}`"
			}
			typ += " with " + strings.Join(holes, " ")
		}
		if f.env != "" {
			env = "`" + f.env + "`"
		}
		doc := f.doc
		if f.privileged {
			doc += " [Root's](#who-may-write-the-file)."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", base+f.path, typ, def(f), env, doc)
	}
}

// defaultText writes a default the way it would stand in the file.
func defaultText[T any](f *field[T], root *T) string {
	return "`" + flow(f.at(root)) + "`"
}

// flow writes the value at a schema pointer as YAML on one line.
func flow(at any) string {
	switch at := at.(type) {
	case *map[string]string:
		parts := make([]string, 0, len(*at))
		for _, name := range sortedKeys(*at) {
			parts = append(parts, name+": "+flowWord((*at)[name]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case *map[string]ResourceLimit:
		parts := make([]string, 0, len(*at))
		for _, name := range sortedKeys(*at) {
			parts = append(parts, fmt.Sprintf("%s: %v", name, plainLimit((*at)[name])))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case *time.Duration:
		return formatDuration(*at)
	case *Actions:
		return "{}"
	case *[]Check:
		return "[]"
	case *[]Hook:
		hooks := make([]string, len(*at))
		for i, h := range *at {
			hooks[i] = "{command: " + flow(&h.Command) + ", if_exists: " + flowWord(h.IfExists) + ", inputs: …}"
		}
		return "[" + strings.Join(hooks, ", ") + "]"
	}
	switch v := plain(at).(type) {
	case []string:
		parts := make([]string, len(v))
		for i, word := range v {
			parts[i] = flowWord(word)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case []int:
		return strings.ReplaceAll(fmt.Sprint(v), " ", ", ")
	case []any: // the needs of nothing that has a default
		return "[]"
	case string:
		return flowWord(v)
	default:
		return fmt.Sprint(v)
	}
}

// flowWord quotes a word that YAML would not take for the same text.
func flowWord(s string) string {
	for i := range len(s) {
		c := s[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 && c != '/' || i > 0 && !strings.ContainsRune("0123456789/._-", rune(c)) && c != '-') {
			return fmt.Sprintf("%q", s)
		}
	}
	switch strings.ToLower(s) {
	case "", "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		return fmt.Sprintf("%q", s)
	}
	return s
}
