package s6_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// Commands that start the compared supervisors in their own namespaces.
const (
	bySvscan = `mkdir /run/service && exec s6-svscan /run/service`
	byHinit  = `mkdir -p /run/data && chown 10000:10000 /run/data && exec hinit init -- sleep 100000`
)

// prologue defines shell functions for scripts and services. seen prints the status that matches a
// pattern.
const prologue = `umask 022
service() { mkdir -p $1; cat >$1/run; chmod 755 $1/run; }
poll() { n=0; until eval "$1" >/dev/null 2>&1; do n=$((n+1)); if [ $n -gt 800 ]; then echo "never: $1"; s6-svstat $S; break; fi; sleep 0.05; done; }
seen() { poll "s6-svstat ${2:-a} >/run/seen && grep '$1' /run/seen"; cat /run/seen; }
`

// supervised runs a script beside a supervisor, and returns its output. Another script creates the
// services.
func supervised(t *testing.T, tools, supervisor, services, text string) string {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "hinit.yaml")
	if err := os.WriteFile(config, []byte("agent: {user: \"10000:10000\", binary: /bin/true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{
		"PATH=" + tools + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C", "TZ=UTC",
		"HINIT_S6=1", "HINIT_CONFIG=" + config, "HERMES_HOME=/run/data",
	}
	var said bytes.Buffer
	init := exec.Command("/bin/sh", "-c", `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mount -t proc proc /proc
touch /run/ready
`+supervisor)
	init.Env, init.Stdout, init.Stderr = env, &said, &said
	init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := init.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { // Ignore the error: everything ends with PID 1.
		_ = init.Process.Kill()
		_ = init.Wait()
		if t.Failed() {
			t.Logf("PID 1 said:\n%s", said.String())
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", "--mount", "--pid", "--target", strconv.Itoa(init.Process.Pid), "/bin/sh", "-c",
		prologue+"S=a\nuntil [ -e /run/ready ]; do sleep 0.05; done\npoll 's6-svscanctl -a /run/service'\nmkdir /run/made && cd /run/made || exit 1\n"+services+
			"\ncd /run/service && mv /run/made/* . || exit 1\ns6-svscanctl -a /run/service\npoll 's6-svok a'\n"+text)
	var output bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = t.TempDir(), env, &output, &output
	cmd.WaitDelay = time.Second // WaitDelay kills the script too, which could outlive nsenter
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%v, %s", err, output.String())
	}
	return fmt.Sprintf("%sexit code %d\n", output.String(), cmd.ProcessState.ExitCode())
}

// seconds matches durations, which may differ by one second.
var seconds = regexp.MustCompile(`\d+ seconds`)

// known are the intended differences from Debian's s6, which is older than the image's.
var known = []difference{
	{"fatal: : unable", "fatal: unable", "2.11 leaves a name out"},
	{"s6-svc: fatal: unable to control", "s6-svc: warning: unable to control", "since 2.14 s6-svc continues with the next directory"},
	{"s6-svlisten1: fatal", "s6-svlisten: fatal", "since 2.14 another program waits"},
	{"not listening\n100", "not listening\n102", "since 2.14"},
	{"down (exitcode 0) S seconds, ready S seconds [never]", "down (not started yet)  [never]", "since 2.13.2"},
	{"down (exitcode 0) S seconds, normally up, want up, ready S seconds [never]", "down (not started yet) , normally up, want up [never]", "since 2.13.2"},
	{
		"timed out\n99 [failed before]", "some services reported permanent failure or their supervisor died\n1 [failed before]",
		"s6 knows of a failure for good only while it waits, hinit also when it happened before",
	},
	{"0 -1 [never, fields]", "-1 -1 [never, fields]", "since 2.13.2"},
}

// finishArgs are the arguments of a finish program under 2.11, without the process group.
var finishArgs = regexp.MustCompile(`(?m)^(finish .*) pgid \d+$`)

func TestSupervisionIsThatOfS6(t *testing.T) {
	requireS6(t)
	testkit.NeedRoot(t)
	for name, c := range map[string]struct{ services, script string }{
		"a service that runs": {
			"printf '#!/bin/sh\\nexec sleep 1000\\n' | service a", `
			s6-svwait -u -t 40000 a; s6-svstat a; s6-svstat -n a; s6-svstat -o up,wantedup,normallyup,ready,paused,exitcode,signal,signum a; s6-svstat -uwNresp a | sed 's/ [0-9]*$//'
			[ "$(s6-svstat -o pid a)" -gt 1 ] && echo pid; s6-svstat -o bogus a; echo $?; s6-svstat a/; s6-svok a; echo $?`,
		},
		"down and up": {
			"printf '#!/bin/sh\\nexec sleep 1000\\n' | service a", `
			s6-svwait -u -t 40000 a; s6-svc -wD -T 40000 -d a; echo $?; s6-svstat a; s6-svstat -n a; s6-svstat -o up,wantedup,normallyup,ready,paused,pid,exitcode,signal,signum a
			s6-svc -d a; echo $?; s6-svc -wu -T 40000 -u a; echo $?; s6-svstat a; s6-svc -wr -T 40000 -r a; echo $?; s6-svstat a; touch a/down; s6-svstat a; s6-svc -wD -T 40000 -d a; s6-svstat a`,
		},
		"a down file": {
			"printf '#!/bin/sh\\nexec sleep 1000\\n' | service a; touch a/down", `
			echo "$(s6-svstat a) [never]"; echo "$(s6-svstat -o exitcode,signum a) [never, fields]"; s6-svwait -D -t 40000 a; echo $?; s6-svwait -u -t 2000 a; echo $?
			s6-svc -t a; echo $?; s6-svc -wu -T 40000 -u a; s6-svstat a`,
		},
		"crashes": {
			"printf '#!/bin/sh\\necho x >>/run/starts\\nexit 3\\n' | service a", `
			poll '[ $(wc -l </run/starts) -ge 3 ]'; seen 'exitcode.*ready'
			until s6-svc -wD -T 40000 -d a; poll '! s6-svstat a | grep "want up"'; s6-svstat a >/run/stat; grep -q exitcode /run/stat; do s6-svc -u a; sleep 1; done # unless it was just up
			cat /run/stat; wc -l </run/starts >/run/n; sleep 1.5; wc -l </run/starts | cmp - /run/n`,
		},
		"death by signal": {
			"printf '#!/bin/sh\\n[ -e /run/go ] && touch /run/stays && exec sleep 1000\\nkill -SEGV $$\\n' | service a", `
			seen 'SIGSEGV.*ready'; poll 's6-svstat -o exitcode,signal,signum a >/run/fields && grep SEGV /run/fields'; cat /run/fields
			touch /run/go; poll '[ -e /run/stays ]'; s6-svwait -u -t 40000 a; s6-svstat a`,
		},
		"a tally of deaths": {
			"printf '#!/bin/sh\\n[ -e /run/died ] && exec sleep 1000\\ntouch /run/died\\nexit 3\\n' | service a; echo 2 >a/max-death-tally", `
			tally() { s6-svdt "$@" | sed 's/^@[0-9a-f]\{24\} //'; }
			poll '[ $(s6-svdt a | wc -l) = 1 ]'; tally a; s6-svwait -u -t 40000 a; s6-svc -wr -T 40000 -k a; poll '[ $(s6-svdt a | wc -l) = 2 ]'; tally a; tally -s -n 1 a
			s6-svc -wr -T 40000 -t a; poll 's6-svdt a | grep -q TERM'; tally a; tally -n 0 a; s6-svdt nope; echo $?; s6-svdt; echo $?; s6-svdt -z a; echo $?`,
		},
		"finish": {
			`printf '#!/bin/sh\n[ -e /run/twice ] && exit 9\nexit 4\n' | service a
			printf '#!/bin/sh\necho "finish $1 $2 $3${4:+ pgid $4}" >>/run/finished\n[ $1 = 9 ] && exit 125\ntouch /run/twice\nexit 0\n' >a/finish; chmod 755 a/finish`, `
			poll 's6-svstat a | grep "exitcode 9.*ready"'; cat /run/finished; s6-svstat a; s6-svwait -u -t 1000 a; echo "$? [failed before]"`,
		},
		"finish of a stop": {
			`printf '#!/bin/sh\nexec sleep 1000\n' | service a
			printf '#!/bin/sh\necho "finish $1 $2 $3${4:+ pgid $4}" >>/run/finished\nuntil [ -e /run/go ]; do sleep 0.05; done\n' >a/finish; chmod 755 a/finish; echo 60000 >a/timeout-finish`, `
			s6-svwait -u -t 40000 a; s6-svc -wd -T 40000 -d a; s6-svstat a; s6-svwait -D -t 1000 a; echo $?; touch /run/go; s6-svwait -D -t 40000 a; echo $?; cat /run/finished; s6-svstat a; s6-svc -wu -T 40000 -u a
			poll 'grep sleep /proc/$(s6-svstat -o pid a)/comm'; s6-svc -wD -T 40000 -dk a; tail -n 1 /run/finished`, // poll waits until sleep runs
		},
		"a finish that does not end": {
			`printf '#!/bin/sh\nexec sleep 1000\n' | service a
			printf '#!/bin/sh\nexec sleep 1000\n' >a/finish; chmod 755 a/finish; echo 300 >a/timeout-finish`, `
			s6-svwait -u -t 40000 a; s6-svc -wD -T 40000 -d a; echo $?; s6-svstat a`,
		},
		"signals": {
			`printf '#!/bin/sh\nfor s in HUP INT QUIT ALRM USR1 USR2 WINCH; do trap "echo $s >>/run/got" $s; done\n>/run/trapped\nwhile :; do sleep 0.05; done\n' | service a`, `
			poll '[ -e /run/trapped ]'; k=0; for l in h i q a 1 2 y; do s6-svc -$l a; k=$((k+1)); poll "[ \$(wc -l </run/got) -eq $k ]"; done; sort /run/got; s6-svstat a`,
		},
		"an obstinate service": {
			`printf '#!/bin/sh\ntrap "" TERM\n>/run/trapped\nwhile :; do sleep 0.05; done\n' | service a`, `
			s6-svwait -u -t 40000 a; poll '[ -e /run/trapped ]'; s6-svc -wd -T 500 -d a; echo $?; s6-svstat a; s6-svc -wD -T 40000 -k a; echo $?; s6-svstat a`,
		},
		"timeout-kill": {
			`printf '#!/bin/sh\ntrap "" TERM\n>/run/trapped\nwhile :; do sleep 0.05; done\n' | service a; echo 300 >a/timeout-kill`, `
			s6-svwait -u -t 40000 a; poll '[ -e /run/trapped ]'; s6-svc -wD -T 40000 -d a; echo $?; s6-svstat a`,
		},
		"down-signal": {
			`printf '#!/bin/sh\ntrap "exit 5" INT\n>/run/trapped\nwhile :; do sleep 0.05; done\n' | service a; echo INT >a/down-signal`, `
			s6-svwait -u -t 40000 a; poll '[ -e /run/trapped ]'; s6-svc -wD -T 40000 -d a; echo $?; s6-svstat a`,
		},
		"once": {
			`printf '#!/bin/sh\nuntil [ -e /run/go ]; do sleep 0.05; done\nexit 2\n' | service a; touch a/down; printf '#!/bin/sh\nexec sleep 1000\n' | service b`, `
			s6-svc -o a; s6-svwait -u -t 40000 a; s6-svstat a; touch /run/go; s6-svwait -D -t 40000 a; s6-svstat a; sleep 1.3; s6-svstat a
			s6-svwait -u -t 40000 b; s6-svc -O b; seen 'want down' b; s6-svc -wD -T 40000 -t b; s6-svstat b`,
		},
		"pause": {
			`printf '#!/bin/sh\nexec sleep 1000\n' | service a`, `
			s6-svwait -u -t 40000 a; s6-svc -p a; seen paused; s6-svstat -o paused a; s6-svc -c a; seen '[^d]$'; s6-svc -p a; poll 's6-svstat a | grep paused'; s6-svc -wD -T 40000 -d a; s6-svstat a`,
		},
		"the down file by command": {
			`printf '#!/bin/sh\nexec sleep 1000\n' | service a`, `
			s6-svwait -u -t 40000 a; s6-svc -wD -T 40000 -D a; ls a/down; s6-svstat a; s6-svc -wu -T 40000 -U a; ls a/down 2>&1 | wc -l; s6-svstat a`,
		},
		"readiness": {
			`printf '#!/bin/sh\nsleep 0.3\necho x >&5\nexec sleep 1000\n' | service a; echo 5 >a/notification-fd; printf '#!/bin/sh\nexec sleep 1000\n' | service b`, `
			s6-svwait -U -t 40000 a; echo $?; s6-svstat a; s6-svstat -o ready a; s6-svc -wR -T 40000 -r a; echo $?; s6-svstat a; s6-svc -wU -T 3000 -u b; echo $?; s6-svwait -U -t 2000 b; echo $?`,
		},
		"a logger": {
			`printf '#!/bin/sh\nwhile :; do echo line; sleep 0.05; done\n' | service a; mkdir a/log; printf '#!/bin/sh\nexec s6-log n2 t /run/log\n' | service a/log`, `
			poll '[ -s /run/log/current ]'; s6-svwait -u -t 40000 a/log; s6-svstat a/log | sed 's/ (.*//'; s6-svc -wD -T 40000 -d a; s6-svstat a; s6-svstat a/log | sed 's/ (.*//'; s6-svc -wu -T 40000 -u a
			wc -c </run/log/current >/run/n; poll '[ $(wc -c </run/log/current) -gt $(cat /run/n) ]'; s6-svc -wr -T 40000 -r a/log; wc -c </run/log/current >/run/n; poll '[ $(wc -c </run/log/current) -gt $(cat /run/n) ]'; echo it goes on
			s6-tai64nlocal </run/log/current | sed 's/^20.*\.[0-9]* //' | sort -u`,
		},
		"directories come and go": {
			`printf '#!/bin/sh\nexec sleep 1000\n' | service a`, `
			cd /run/made; printf '#!/bin/sh\nexec sleep 1000\n' | service b; printf '#!/bin/sh\nexec sleep 1000\n' | service .c; mv b .c /run/service; cd /run/service
			s6-svscanctl -a /run/service; echo $?; S=b; poll 's6-svok b'; s6-svwait -u -t 40000 b; s6-svstat b; s6-svstat .c; echo $?
			s6-svstat -o pid b >/run/pid; mv b .b; s6-svscanctl -an /run/service; echo $?; poll '! kill -0 $(cat /run/pid)'; echo it has ended`,
		},
		"nobody listens": {
			`printf '#!/bin/sh\nexec sleep 1000\n' | service a`, `
			mkdir /run/x; for d in /run/x /run/nope; do s6-svstat $d; echo $?; s6-svok $d; echo $?; s6-svc -u $d; echo $?; s6-svwait -u -t 5000 $d; echo $?; s6-svscanctl -a $d 2>/run/err; echo $?; done`,
		},
		"what run gets": {
			`printf '#!/bin/sh\n(echo "args $*"; pwd; readlink /proc/$$/fd/0; set -- $(cat /proc/$$/stat); [ $1 = $5 ] && [ $1 = $6 ] && echo a session of its own) >/run/new\nmv /run/new /run/got\nexec sleep 1000\n' | service a`, `
			poll '[ -s /run/got ]'; s6-svwait -u -t 40000 a; cat /run/got`,
		},
		"a run that cannot be run": {
			`mkdir a; echo no program >a/run; mkdir b`, `
			poll 's6-svok b'; sleep 0.5; echo "$(seen 'want up') [never]"; echo "$(seen 'want up' b) [never]"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			normal := func(text string) string {
				text = seconds.ReplaceAllString(text, "S seconds")
				text = finishArgs.ReplaceAllString(text, "$1")
				return same(outcome{output: text}, known...)
			}
			expected := normal(supervised(t, theirs, bySvscan, c.services, c.script))
			got := normal(supervised(t, ours, byHinit, c.services, c.script))
			if got != expected {
				t.Errorf("%s\n--- hinit:\n%s--- s6:\n%s", c.script, got, expected)
			}
		})
	}
}
