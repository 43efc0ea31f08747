package s6_test

import (
	"testing"

	"hinit/internal/testkit"
)

// TestFiltersDoWhatThoseOfS6Do compares the tools that need no supervisor with the tools of s6.
func TestFiltersDoWhatThoseOfS6Do(t *testing.T) {
	requireS6(t)
	testkit.NeedRoot(t)
	known := []difference{{
		"1972-06-30 23:59:60", "1972-07-01 00:00:00", "a second that Go's clock does not have is shown as the next one",
	}}
	for name, text := range map[string]string{
		"tai64nlocal":             `printf '@400000006b00e1dd1213c744 x @400000006b00e1dd1213c744\n @400000006b00e1dd1213c744\n@400000006b00e1dd\n\n@4000000000000000000000ff old\n@400000006b00e1dd1213c744z\n' | s6-tai64nlocal`,
		"tai64nlocal -g":          `printf '@400000006b00e1dd1213c744 x\n@4000000037000000075bcd15 y\n@4000000056000000075bcd15\n' | s6-tai64nlocal -g`,
		"tai64nlocal, leap":       `for s in 04b25809 04b2580a 04b2580b 04b2580c 58684680 586846a3 586846a4 586846a5 586846a6; do echo @40000000${s}00000000; done | s6-tai64nlocal -g`,
		"tai64nlocal, usage":      `s6-tai64nlocal -x`,
		"tai64nlocal, long lines": `(head -c 200000 /dev/zero | tr '\0' a; printf '\n@400000006b00e1dd1213c744 x\n') | s6-tai64nlocal | tail -c 100`,

		"setuidgid":                 `s6-setuidgid nobody id; HOME=/root USER=me FOO='b ar' s6-setuidgid nobody sh -c 'echo $HOME $USER $FOO'`,
		"setuidgid, groups":         `s6-setuidgid daemon id; s6-setuidgid root id`,
		"setuidgid, numbers":        `s6-setuidgid 12:34 id; s6-setuidgid 0:0 id`,
		"setuidgid, code":           `s6-setuidgid nobody sh -c 'exit 42'`,
		"setuidgid, unknown":        `s6-setuidgid nosuchuser true`,
		"setuidgid, uid alone":      `s6-setuidgid 65534 true`,
		"setuidgid, not root":       `s6-setuidgid nobody s6-setuidgid nobody true`,
		"setuidgid, no program":     `s6-setuidgid nobody nosuchprog`,
		"setuidgid, no executable":  `s6-setuidgid nobody /etc/passwd`,
		"setuidgid, directory":      `s6-setuidgid nobody /etc`,
		"setuidgid, nothing":        `s6-setuidgid`,
		"setuidgid, no words":       `s6-setuidgid nobody`,
		"setuidgid, no option":      `s6-setuidgid nobody -- true`,
		"setuidgid, directory kept": `cd / && s6-setuidgid nobody pwd`,
		"setuidgid, first on path":  `mkdir a b; printf '#!/bin/sh\necho a\n' >a/p; printf '#!/bin/sh\necho b\n' >b/p; chmod +x b/p; PATH=a:b:$PATH s6-setuidgid root p`,

		"envdir": `mkdir e; printf 'v1\nmore\n' >e/A; : >e/B; printf '\n' >e/C; printf 'trail  \t' >e/D; printf 'a\0b\n' >e/E; echo x >e/.F; echo x >e/G=H
			for o in '' -f -n -nf '-c :' '-fc :'; do B=1 s6-envdir $o e sh -c 'printf "%s|" "$A" "${B-none}" "$C" "$D" "$E"; env | grep -c "^[A-Z]*="'; done`,
		"envdir, long lines":        `mkdir e; head -c 30000 /dev/zero | tr '\0' a >e/A; s6-envdir -Lf e sh -c 'echo ${#A}'`,
		"envdir, missing":           `s6-envdir nope true`,
		"envdir -I, missing":        `s6-envdir -I nope echo ran`,
		"envdir, no program":        `mkdir e; s6-envdir e nosuchprog`,
		"envdir, a directory in it": `mkdir -p e/sub; echo v >e/A; s6-envdir e true; s6-envdir -I e true`,
		"envdir, usage":             `s6-envdir; s6-envdir -Z e true`,

		"log, stdout":                 `printf 'a\nb\n' | s6-log 1`,
		"log, alert":                  `printf 'a\nb\n' | s6-log 2`,
		"log, stamps":                 `printf 'a\nb\n' | s6-log t 1 T 1 t 2 1`,
		"log, both stamps":            `printf 'a\n' | s6-log t T 1 T t 1`,
		"log, prefix":                 `printf 'a\nb\n' | s6-log pfoo 1 1 p 1 t pbar: 1 2 2>&1; printf 'a\n' | s6-log p 1; printf 'a\n' | s6-log pfoo T ./d`,
		"log, one directory twice":    `printf 'a\n' | s6-log ./d ./d; echo $?; rm -r d`,
		"log, no such notification":   `printf 'a\n' | s6-log -d 3 1 3>&-`,
		"log, directory":              `printf 'a\nb\n' | s6-log t ./d; printf 'c\n' | s6-log T ./d`,
		"log, the agent's":            `mkdir logs; printf 'a\n\nb\r\n' | s6-log 1 n10 s1000000 T ./logs`,
		"log, two":                    `printf 'a\nb\n' | s6-log t ./d n1 ./e`,
		"log, empty input":            `s6-log ./d </dev/null`,
		"log, NUL":                    `printf 'a\0b\n' | s6-log 1 ./d`,
		"log, not finished":           `mkdir d; echo old >d/current; printf 'x\n' | s6-log ./d`,
		"log, not finished and empty": `mkdir d; : >d/current; printf 'x\n' | s6-log ./d`,
		"log, finished":               `mkdir d; echo old >d/current; chmod 744 d/current; printf 'x\n' | s6-log ./d`,
		"log, selections":             `printf 'aa\nbb\nab\n' | s6-log -- -b 1 +^b 1 f 2`,
		"log, none match":             `printf 'aa\nbb\n' | s6-log -- '-.' 1 f ./d`,
		"log, long lines":             `(head -c 8192 /dev/zero | tr '\0' x; echo; head -c 8193 /dev/zero | tr '\0' y; echo; head -c 20000 /dev/zero | tr '\0' z; echo) | s6-log 1 | awk '{print length($0), substr($0, 1, 1)}'`,
		"log, line limit":             `(head -c 100 /dev/zero | tr '\0' x; echo; echo short) | s6-log -l 50 1; (head -c 9000 /dev/zero | tr '\0' x; echo) | s6-log -l 0 1 | wc -c; printf 'xxxxx\n' | s6-log -l 3 1`,
		"log, many rotations":         `i=0; while [ $i -lt 3000 ]; do echo "line $i of a log that is rotated"; i=$((i+1)); done | s6-log n3 s4096 l100 ./d; ls d | wc -l; cat d/@*.s d/current | tail -n 1; cat d/* | sort | uniq -d | wc -l; rm -r d`,
		"log, total":                  `i=0; while [ $i -lt 1000 ]; do echo "line $i of a log that is rotated"; i=$((i+1)); done | s6-log n100 s4096 S9000 l100 ./d; cat d/*.s d/current | tail -n 1; [ $(cat d/*.s | wc -c) -le 9000 ] && echo small enough; rm -r d`,
		"log, ALRM":                   `mkfifo f; s6-log t ./d <f & exec 3>f; idle $!; echo a >&3; idle $!; kill -ALRM $!; idle $!; kill -ALRM $!; idle $!; echo b >&3; exec 3>&-; wait`,
		"log, TERM":                   `mkfifo f; s6-log ./d <f & exec 3<>f; idle $!; echo a >&3; idle $!; kill -TERM $!; wait $!; echo $?`,
		"log, HUP":                    `mkfifo f; s6-log ./d <f & exec 3<>f; idle $!; echo a >&3; idle $!; kill -HUP $!; wait $!; echo $?`,
		"log, protected":              `mkfifo f; s6-log -p 1 <f & exec 3>f; idle $!; kill -TERM $!; idle $!; echo a >&3; exec 3>&-; wait $!; echo $?`,
		"log, killed":                 `mkfifo f; s6-log ./d <f & exec 3>f; idle $!; echo a >&3; idle $!; kill -KILL $!; wait $! 2>/dev/null; stat -c %a d/current; echo b | s6-log ./d`,
		"log, second writer":          `mkfifo f; s6-log ./d <f & exec 3>f; idle $!; s6-log ./d </dev/null; echo $?; rm d/lock; echo x | s6-log ./d; echo $?; exec 3>&-; wait`,
		"log, notify":                 `echo a | s6-log -d 3 1 3>ready; cat ready`,
		"log, no parent":              `s6-log ./nope/d </dev/null`,
		"log, no directory":           `: >d; s6-log ./d </dev/null`,
		"log, not allowed":            `mkdir d; chmod 700 .; s6-setuidgid nobody s6-log /root/d </dev/null; s6-setuidgid nobody s6-log /proc/1/root </dev/null`,
		"log, words":                  `for w in '' nX n s1x -l12 e d; do s6-log 1 "$w" </dev/null; echo $?; done; s6-log; s6-log n5 </dev/null; s6-log T </dev/null; s6-log -x 1; s6-log 12; s6-log t2; s6-log -l x 1; s6-log -- '+(' 1; s6-log + 1`,
		"log, tolerance":              `s6-log s10 l3000 ./d </dev/null; echo $?; s6-log l40000 s10 ./d </dev/null; echo $?; s6-log l90000 ./d </dev/null`,
		"log, blocking":               `printf 'a\nb\n' | s6-log -b 1 ./d`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compare(t, text, known...)
		})
	}
}
