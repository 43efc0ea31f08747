package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"hinit/internal/gendocs/reference"
)

// deniedFeatures lists the texts of the importer that deny a feature of hinit, each with the keys of hinit.yaml that would make
// the text wrong. A key is a part of a path such as services.NAME.stop.command.
var deniedFeatures = map[string][]string{
	"hinit runs no commands for variables":  {"env_command", "env_cmds"},
	"hinit watches no sources":              {"watch", "watch_files"},
	"hinit offers no tools":                 {"mcp", "mcp_server"},
	"hinit uses no sudo":                    {"elevated", "sudo"},
	"hinit has no remote access":            {"listen", "control.listen", "pairing"},
	"hinit has nothing like this sett":      nil, // true for any key that the importer does not know
	"hinit has nothing like this section":   nil,
	"hinit has no event listeners":          {"listeners"},
	"hinit opens no FastCGI":                {"sockets", "listen"},
	"hinit has a control socket of its own": {"control.listen", "control.password"},
	"hinit takes no plug-ins":               {"plugins"},
	"hinit has no need of it":               {"pidfile"},
	// TestSignalsAreThoseOfTheConfiguration checks the importer's own list of signals
	"hinit does not stop with %s":               nil,
	"hinit doesn't end when":                    {"exit_on_end", "exit_with"},
	"hinit always sends KILL":                   {"stop.kill"},
	"hinit always stops all processes":          {"stop.main_only", "stop.tree"},
	"hinit rotates every log":                   {"logs.rotate"},
	"one log takes both streams":                {"logs.stderr", "logs.streams"},
	"runs of a task don't overlap":              {"schedule.overlap", "schedule.concurrent"},
	"hinit restarts nothing that is not ready":  {},
	"hinit has no bundles":                      {"bundles"},
	"services of hinit.yaml have no finish":     {"finish"},
	"hinit holds no lock":                       {"lock", "lock_fd"},
	"hinit makes no PID namespaces":             {"pid_namespace", "namespace"},
	"a task that runs for long is not ended":    {"schedule.timeout", "task.timeout", "max_runtime"},
	"a task is not undone":                      {"undo", "down"},
	"hinit has no instances":                    {"instances", "replicas"},
	"hinit leaves logs as they are":             {"logs.strip_ansi"},
	"a service has no terminal":                 {"tty", "terminal"},
	"s6 waits for ever for the end":             {},
	"hinit does not look at it":                 nil,
	"the program has to be in the image":        {"image", "build"},
	"is for the engine":                         {"services.NAME.ports", "volumes", "networks"},
	"hinit has the keys of logs for size":       nil,
	"hinit passes on the output as it is":       {"logs.strip_ansi"},
	"hinit stops in the reverse order of needs": {"stop.order"},
	"hinit stops any service when":              {"essential"},
	"hinit takes and rotates":                   {"logger"},
	"hinit writes to logs":                      {"logs.file"},
	"hinit restarts by restart.policy":          nil,
	"hinit has no conditions":                   {"conditions", "services.NAME.if_exists"},
	"hinit has no conflicts":                    {"conflicts"},
	"hinit isolates no service":                 {"services.NAME.isolation", "private_tmp", "capabilities", "seccomp", "root_dir"},
	"hinit makes no directories":                {"runtime_dir", "directories", "mkdir"},
	"hinit has no control groups for this":      {"cgroup", "cpu_quota", "cpu.max", "memory.min", "limits.cgroup"},
	"hinit has no limits in percent":            nil,
	"a start that takes long is not ended":      {"start.timeout", "start_timeout"},
	"hinit passes the program's own name":       {"argv0", "arg0"},
	"hinit has no such time":                    nil,
	"hinit ends no service because of its age":  {"max_runtime"},
	"hinit wakes no machine":                    {"schedule.wake"},
	"days that are both a day of the month":     {"schedule.either", "schedule.days"},
}

// denialSentence matches sentences that deny a feature of hinit, or describe a difference of hinit.
var denialSentence = regexp.MustCompile(`\bhinit (has (no|nothing|a control|the keys)|doesn't|does not|offers|always|rotates|leaves|passes|uses no|\w+s (no|nothing|in|any|and|to|it|by)\b)|hinit\.yaml have no|is not (undone|ended)|a service has no|one log takes|don't overlap|waits for ever`)

func configKeys() map[string]bool {
	table := make(map[string]bool)
	for prefix, keys := range reference.Keys() {
		for _, k := range keys {
			table[prefix+k.Path] = true
			for path := k.Path; path != ""; _, path, _ = strings.Cut(path, ".") {
				table[path] = true
			}
			for group := prefix + k.Path; strings.Contains(group, "."); group = group[:strings.LastIndex(group, ".")] {
				table[group] = true // the text is true for every key that the importer does not know
			}
		}
	}
	return table
}

func packageTexts(t *testing.T) (list []string) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, is := n.(*ast.BasicLit); is && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					list = append(list, text)
				}
			}
			return true
		})
	}
	for line := range strings.SplitSeq(ruleTable, "\n") {
		if !strings.HasPrefix(line, "#") {
			list = append(list, line)
		}
	}
	return list
}

// No note of the importer may deny a feature that has a key of hinit.yaml, such as the forwarding of logs or the descriptor for
// readiness.
func TestTheImportDeniesNothingThatHinitYamlHas(t *testing.T) {
	table, used := configKeys(), make(map[string]bool)
	if !table["services.NAME.notify.fd"] || !table["notify.fd"] || !table["logs.max_age"] || !table["services.NAME.limits"] {
		t.Fatal("the table of keys is not read as it is written")
	}
	named := regexp.MustCompile(`\b(services\.NAME|logs|restart|stop|control|schedule|agent|notify)(\.[a-z_]+)+\b`)
	for _, text := range packageTexts(t) {
		for _, key := range named.FindAllString(text, -1) {
			if key = strings.TrimSuffix(key, ".nofile"); !table[strings.TrimSuffix(key, ".nproc")] {
				t.Errorf("the import names the key %s, which hinit.yaml has not: %s", key, text)
			}
			if strings.HasPrefix(key, "agent.") {
				t.Errorf("the import names %s, which hinit run refuses: %s", key, text)
			}
		}
		if !denialSentence.MatchString(text) {
			continue
		}
		known := false
		for words, keys := range deniedFeatures {
			if !strings.Contains(text, words) {
				continue
			}
			known, used[words] = true, true
			for _, key := range keys {
				if table[key] {
					t.Errorf("the import says %q, and hinit.yaml has %s now", text, key)
				}
			}
		}
		if !known {
			t.Errorf("the import says %q; add a line to denials with the keys that would make it untrue", text)
		}
	}
	for words := range deniedFeatures {
		if !used[words] {
			t.Errorf("the import does not say %q any more; remove the line", words)
		}
	}
}

// The importer must accept exactly the stop signals that hinit.yaml accepts.
func TestSignalsAreThoseOfTheConfiguration(t *testing.T) {
	for _, name := range []string{"TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL", "WINCH", "STOP", "ABRT"} {
		_, err := signalName("SIG" + name)
		taken := err == nil
		if has := validate([]byte("services: {a: {command: [x], stop: {signal: "+name+"}}}")) == nil; has != taken {
			t.Errorf("%s: hinit.yaml takes it: %v, the import: %v", name, has, taken)
		}
	}
}
