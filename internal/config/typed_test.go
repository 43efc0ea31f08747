package config

import "testing"

// TestWhatPeopleType contains mistakes of people who know other formats, or the YAML of other programs. Each error must name
// the file, the line and the correct text.
func TestWhatPeopleType(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{
			"services:\n\tweb:\n\t\tcommand: [a]\n",
			"hinit.yaml:2: cannot parse YAML: found character that cannot start any token; indent with spaces, not with tabs, and quote what begins with @ or `",
		},
		{
			"services:\n  web:\n    command: [a]\n   user: x\n",
			`hinit.yaml:4: cannot parse YAML: did not find expected key; is the line indented like the other lines of its level?`,
		},
		{
			"services:\n  web\n    command: [a]\n",
			`hinit.yaml:3: cannot parse YAML: mapping values are not allowed in this context; line 2 needs a colon at its end`,
		},
		{
			"home:/x\nstop: {grace: 1s}\n",
			`hinit.yaml:2: cannot parse YAML: mapping values are not allowed in this context; line 1 needs a space after its colon`,
		},
		{
			"services:\n  web: {command: *cmd}\n",
			`hinit.yaml:2: cannot parse YAML: unknown anchor 'cmd' referenced; quote a text that begins with *`,
		},
		{
			"services:\n  a: &a {command: [a]}\n  b:\n    <<: *a\n",
			`hinit.yaml:4: merge keys (<<) are not supported; write the keys out`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    memory: {restart: 1.5G}\n",
			`hinit.yaml:4: cannot set services.web.memory.restart: expected a size such as 512MiB or 2GiB, got the text "1.5G"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    memory: {restart: lots}\n",
			`hinit.yaml:4: cannot set services.web.memory.restart: expected a size such as 512MiB or 2GiB, got the text "lots"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    memory: {restart: -1}\n",
			`hinit.yaml:4: cannot set services.web.memory.restart: expected a size such as 512MiB or 2GiB, got the number -1`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    stop: {grace: 1.5 h}\n",
			`hinit.yaml:4: cannot set services.web.stop.grace: expected a duration such as 30s, got the text "1.5 h"; write "1h30m"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    stop: {grace: 1d}\n",
			`hinit.yaml:4: cannot set services.web.stop.grace: expected a duration such as 30s, got the text "1d"; write "24h"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    stop: {grace: 5min}\n",
			`hinit.yaml:4: cannot set services.web.stop.grace: expected a duration such as 30s, got the text "5min"; write "5m"`,
		},
		{
			"services:\n  - name: web\n    command: [a]\n",
			`hinit.yaml:2: cannot read services: expected a mapping such as {web: {command: [httpd]}}, got a list`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    env_file: {a: b}\n",
			`hinit.yaml:4: cannot set services.web.env_file: expected a path, got a mapping`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    env: [A=b]\n",
			`hinit.yaml:4: cannot read services.web.env: expected a mapping such as {NAME: value}, got a list`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    env: {A: {b: c}}\n",
			`hinit.yaml:4: cannot set services.web.env.A: expected text, got a mapping`,
		},
		{
			"services:\n  web:\n    command: httpd -D\n",
			`hinit.yaml:3: cannot set services.web.command: expected a list of words such as ["sleep", "60"], got the text "httpd -D"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    restart: {policy: on_failure}\n",
			`hinit.yaml:4: cannot set services.web.restart.policy: expected one of always, on-failure, never, on-success, got "on_failure"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    restart: sometimes\n",
			`hinit.yaml:4: cannot set services.web.restart.policy: expected one of always, on-failure, never, on-success, got "sometimes"`,
		},
		{
			"sërvices: {}\n",
			`hinit.yaml:1: unknown key "sërvices"; did you mean "services"?`,
		},
		{
			"services:\n  wéb: {command: [a]}\n",
			`hinit.yaml:2: cannot use service name "wéb": a name is 1 to 64 of "a" to "z", "0" to "9", "_" and "-", and begins with a letter or digit`,
		},
		{
			"services:\n  web:\n    comm\u200band: [a]\n",
			`hinit.yaml:3: unknown key "services.web.comm\u200band"; did you mean "services.web.command"?`,
		},
		{
			"services:\n\u00a0\u00a0web:\n    command: [a]\n",
			`hinit.yaml:2: unknown key "\u00a0\u00a0web"; it has the character U+00A0, which looks like a blank or like nothing: type the line again with plain spaces`,
		},
		{
			"services:\n  web: {command: [“a”], user: ‘x’ y}\n",
			`hinit.yaml:2: cannot set services.web.user: expected a user name, a uid or user:group, got "‘x’ y"`,
		},
		{
			"hello\n",
			`hinit.yaml:1: cannot read the file: expected a mapping with keys agent, boot, control, home, isolation, logs, on, profiles, restart, runs, services, shutdown, start, stop, got the text "hello"`,
		},
		{
			"\x00\x01\x02",
			`hinit.yaml:1: cannot parse YAML: the character U+0000 in column 1 is a control character, which YAML doesn't allow`,
		},
		{
			"{\"home\": \"/x\",}\nfoo\n",
			`hinit.yaml:2: cannot parse YAML: did not find expected <document start>; the mapping has ended before this line; remove it, or write it as a key below the others`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    cwd: \"{hmoe}/x\"\n",
			`hinit.yaml:4: cannot set services.web.cwd: unknown placeholder {hmoe}; did you mean {home}?`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    cwd: \"/srv/{profile}\"\n",
			`hinit.yaml:4: cannot set services.web.cwd: unknown placeholder {profile}; known here: {home}; write {{profile}} for the text itself`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    cwd: ${HOME}/x\n",
			`hinit.yaml:4: cannot set services.web.cwd: expected an absolute path, got "${HOME}/x"; write it out, because variables and ~ are not filled in`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    enabled: \"yes\"\n",
			`hinit.yaml:4: cannot set services.web.enabled: expected true or false, got the text "yes"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    needs: [web]\n",
			`hinit.yaml:4: cannot set services.web.needs: web → web is a cycle; none of them could ever start; remove one of these needs`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    needs: [dbb]\n  db: {command: [d]}\n",
			`hinit.yaml:4: cannot set services.web.needs: there is no service "dbb"; did you mean "db"?`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    needs: {db: healthy}\n",
			`hinit.yaml:4: cannot set services.web.needs: expected a list of names such as [db] or [{name: db, until: started}], got a mapping`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    needs: [{name: db, until: healthy}]\n  db: {command: [d]}\n",
			`hinit.yaml:4: cannot set services.web.needs.0.until: expected one of started, ready, done, got "healthy"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    checks: [{http: {url: https://x/}}]\n",
			`hinit.yaml:4: cannot set services.web.checks.0.http.url: https is not supported; use an exec check with curl, or an address without TLS in the container`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    checks: [{kind: alive}]\n",
			`hinit.yaml:4: cannot use services.web.checks.0: its type is missing; add one of http, tcp, unix, exec, file, log, state, deaf`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    checks: [{tcp: {port: 1}, http: {port: 2}}]\n",
			`hinit.yaml:4: cannot use services.web.checks.0: its kind is missing; it is one of startup, ready, alive`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    checks: [{tcp: {port: 99999}}]\n",
			`hinit.yaml:4: cannot set services.web.checks.0.tcp.port: expected a port from 1 to 65535 or {env:NAME}, got "99999"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    checks: [{kind: liveness, tcp: {port: 1}}]\n",
			`hinit.yaml:4: cannot set services.web.checks.0.kind: expected one of startup, ready, alive, got "liveness"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    checks: {tcp: {port: 1}}\n",
			`hinit.yaml:4: cannot set services.web.checks: expected a list of checks such as [{kind: alive, tcp: {port: 8080}}], got a mapping`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    checks: [{tcp: {port: 1}, timeout: 5}]\n",
			`hinit.yaml:4: cannot set services.web.checks.0.timeout: expected a duration such as 30s, got the number 5; write "5s"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    schedule: {cron: \"61 * * * *\"}\n",
			`hinit.yaml:4: cannot set services.web.schedule.cron: end of range (61) above maximum (59): "61"; the five fields are minute, hour, day of the month, month and weekday`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    schedule: every day\n",
			`hinit.yaml:4: cannot set services.web.schedule.cron: expected exactly 5 fields, found 2: [every day]; the five fields are minute, hour, day of the month, month and weekday`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    schedule: {cron: \"0 3 * * *\", timezone: Mars/Base}\n",
			`hinit.yaml:4: cannot set services.web.schedule.timezone: there is no time zone "Mars/Base" in this container; install its zone data (package tzdata), or write the schedule in UTC`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    umask: 999\n",
			`hinit.yaml:4: cannot set services.web.umask: expected three octal digits such as "027", got "999"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    user: \"a b\"\n",
			`hinit.yaml:4: cannot set services.web.user: expected a user name, a uid or user:group, got "a b"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    nice: 40\n",
			`hinit.yaml:4: cannot set services.web.nice: expected a number from -20 to 19, got 40`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    cpu_affinity: 0-\n",
			`hinit.yaml:4: cannot set services.web.cpu_affinity: expected processors such as "0-3,6", got "0-"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    stop: {signal: 15}\n",
			`hinit.yaml:4: cannot set services.web.stop.signal: expected one of TERM, INT, HUP, QUIT, USR1, USR2, KILL, got the number 15`,
		},
		{
			"service:\n  web: {command: [a]}\n",
			`hinit.yaml:1: unknown key "service"; did you mean "services"?`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    depends_on: [db]\n",
			`hinit.yaml:4: unknown key "services.web.depends_on"; did you mean "services.web.needs"?`,
		},
		{
			"HOME: /x\n",
			`hinit.yaml:1: unknown key "HOME"; did you mean "home"?`,
		},
		{
			"Services:\n  web: {command: [a]}\n",
			`hinit.yaml:1: unknown key "Services"; did you mean "services"?`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    env-file: /x\n",
			`hinit.yaml:4: unknown key "services.web.env-file"; did you mean "services.web.env_file"?`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    maxRestarts: 3\n",
			`hinit.yaml:4: unknown key "services.web.maxRestarts"; did you mean "services.web.restart.max_restarts"?`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    limits: {nofile: 64k}\n",
			`hinit.yaml:4: cannot set services.web.limits.nofile: expected a number or unlimited, got the text "64k"; it is no size in bytes, write 65536 or 64000`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    limits: 1024\n",
			`hinit.yaml:4: cannot read services.web.limits: expected a mapping with keys as, core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, sigpending, stack, got the number 1024`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    on: {crashed: {exec: [a]}}\n",
			`hinit.yaml:4: unknown key "services.web.on.crashed"; known here: crash-loop, parked, unhealthy, ready, failed, oom, stale`,
		},
		{
			"on: {parked: \"curl x\"}\n",
			`hinit.yaml:1: cannot set on.parked.0: expected an action such as {exec: [notify]} or {webhook: "https://example.org/hooks/1"}, got the text "curl x"`,
		},
		{
			"on: true\n",
			`hinit.yaml:1: cannot read on: expected a mapping with keys crash-loop, parked, unhealthy, ready, failed, oom, stale, got the boolean true`,
		},
		{
			"logs: {max_size_mb: 1MB}\n",
			`hinit.yaml:1: cannot set logs.max_size_mb: expected a whole number of megabytes, here 1, got the text "1MB"`,
		},
		{
			"services:\n  web:\n",
			`hinit.yaml:2: cannot use service "web": services.web.command is missing`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    restart: {max_restarts: 2.5}\n",
			`hinit.yaml:4: cannot set services.web.restart.max_restarts: expected a whole number, got the number 2.5`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    restart: {max_restarts: 99999999999999999999}\n",
			`hinit.yaml:4: cannot set services.web.restart.max_restarts: expected a number with fewer digits, got the number 99999999999999999999`,
		},
		{
			"services:\n  web: {command: [\"a]}\n",
			`hinit.yaml:2: cannot parse YAML: found unexpected end of stream; is a quote, a bracket or a brace left open?`,
		},
		{
			"services: {web: {command: [a]}\n",
			`hinit.yaml:1: cannot parse YAML: did not find expected ',' or '}'; is a quote, a bracket or a brace left open?`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    cwd: /a: b\n",
			`hinit.yaml:4: cannot parse YAML: mapping values are not allowed in this context; quote a value that has a colon and a space in it`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    user: @x\n",
			"hinit.yaml:4: cannot parse YAML: found character that cannot start any token; indent with spaces, not with tabs, and quote what begins with @ or `",
		},
		{
			"%YAML 2.0\n---\nhome: /x\n",
			`hinit.yaml:1: cannot parse YAML: found incompatible YAML document; remove the line with %YAML`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    memory: {warn: 80%}\n",
			`hinit.yaml:4: cannot set services.web.memory.warn: expected a size such as 512MiB or 2GiB, got the text "80%"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    ionice: high\n",
			`hinit.yaml:4: cannot read services.web.ionice: expected a mapping with keys class, level, got the text "high"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    oom_score: never\n",
			`hinit.yaml:4: cannot set services.web.oom_score: expected a whole number, got the text "never"`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    user: !!binary aGk=\n",
			`hinit.yaml:4: cannot set services.web.user: expected a user, got the text "aGk="`,
		},
		{
			"services:\n  ? [a, b]\n  : {command: [a]}\n",
			`hinit.yaml:2: cannot read services.?: expected the name of a key, got a list`,
		},
		{
			"services:\r\n  web:\r\n    comand: [a]\r\n",
			`hinit.yaml:3: unknown key "services.web.comand"; did you mean "services.web.command"?`,
		},
		{
			"services:\n  a: {command: [a], needs: [b]}\n  b: {command: [b], needs: [a]}\n",
			`hinit.yaml:2: cannot set services.a.needs: a → b → a is a cycle; none of them could ever start; remove one of these needs`,
		},
		{
			"services:\n  web:\n    command: [httpd]\n    restart: {initial: 1, max: 2}\n",
			"hinit.yaml:4: cannot set services.web.restart.initial: expected a duration such as 30s, got the number 1; write \"1s\"\nhinit.yaml:4: cannot set services.web.restart.max: expected a duration such as 30s, got the number 2; write \"2s\"",
		},
	} {
		if _, got := loadConfig(t, tt.text, nil); got != tt.want {
			t.Errorf("%s\ngot  %s\nwant %s", tt.text, got, tt.want)
		}
	}
}
