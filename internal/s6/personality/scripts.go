package personality

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"hinit/internal/blocking"
	"hinit/internal/proc"
	"hinit/internal/registry"
	"hinit/internal/s6/scandir"
)

// files returns the scripts to put into a slot. They are for people; hinit does not read them.
func (s *S6) files(d registry.Slot) scandir.Files {
	f := scandir.Files{Run: script(d.Cred, d.Env, d.Dir, d.Argv, "hinit starts this service by itself and does not run this file. To run it does the same.")}
	if d.Finish {
		f.Finish = finishScript(d.ParkOn)
	}
	if d.Log != "" {
		size := strconv.Itoa(max(d.LogSizeMB, 1) * 1_000_000)
		argv := []string{commandDir + "/s6-log", "1", "n" + strconv.Itoa(d.LogArchives), "s" + size, "T", d.Log}
		f.Log = script(s.cred, nil, "", argv, "hinit writes this log by itself and does not run this file.")
	}
	return f
}

// script returns a shell script that runs argv in dir, with the variables in env and the user cred. comment explains the script
// to its reader.
func script(cred *proc.Cred, env map[string]string, dir string, argv []string, comment string) string {
	var b strings.Builder
	b.WriteString(interpreter() + "# " + comment + "\nset -e\n")
	for _, name := range slices.Sorted(maps.Keys(env)) {
		b.WriteString("export " + name + "=" + quote(env[name]) + "\n")
	}
	if dir != "" {
		b.WriteString("cd " + quote(dir) + "\n")
	}
	words := make([]string, len(argv))
	for i, word := range argv {
		words[i] = quote(word)
	}
	command := strings.Join(words, " ")
	if cred != nil { // use numbers, because the image may have another name for the user
		user := strconv.FormatUint(uint64(cred.UID), 10) + ":" + strconv.FormatUint(uint64(cred.GID), 10)
		b.WriteString(`[ "$(id -u)" != 0 ] || exec ` + commandDir + "/s6-setuidgid " + user + " " + command + "\n")
	}
	b.WriteString("exec " + command + "\n")
	return b.String()
}

func finishScript(parkOn []int) string {
	var b strings.Builder
	b.WriteString(interpreter() + "# hinit decides by itself, and does not run this file. After these codes it does not start the gateway again.\n")
	b.WriteString("case \"$1\" in\n")
	for _, code := range parkOn {
		b.WriteString("  " + strconv.Itoa(code) + ") exit 125 ;;\n")
	}
	b.WriteString("esac\nexit 0\n")
	return b.String()
}

// interpreter returns the first line of the scripts in slots, an interpreter directive.
var interpreter = sync.OnceValue(func() string {
	err := blocking.Do(blocking.Foreign, func() error {
		_, err := os.Stat(commandDir + "/with-contenv")
		return err
	})
	if err == nil {
		return "#!" + commandDir + "/with-contenv sh\n"
	}
	return "#!/bin/sh\n"
})

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
