package tools

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/redact"
	"hinit/internal/version"
	"hinit/internal/wholefile"
	"hinit/profiles"
)

const (
	bundleTimeout      = 15 * time.Second // time limit of the whole bundle; parts that aren't ready then stay incomplete
	maxParallelParts   = 16               // number of parts that hinit collects at the same time
	maxPartBytes       = 4 << 20          // largest part in bytes
	maxBundleLogBytes  = 64 << 20         // total size of all logs in bytes, shared equally
	defaultBundleLines = 500              // number of last lines of each log
)

func bundleVerb(table func() []cli.Verb) cli.Verb {
	return cli.Verb{
		Name: "bundle", Action: "write the bundle", Args: "[-o FILE] [-n N] [--hide VARIABLE]...",
		Summary: "collect everything that a bug report needs in one tar.gz, without secrets",
		Run: func(t *cli.Terminal, c *cli.Call) int {
			file := c.Flags.String("o", "", "write this `FILE`, - for standard output (default hinit-bundle-DATE.tar.gz here)")
			n := c.Flags.Int("n", defaultBundleLines, "so many lines, `N`, of each log")
			var hide cmdline.ListFlag
			c.Flags.Var(&hide, "hide", "hide the value of this `VARIABLE` too; may be repeated")
			if _, code, ok := c.Parse(t, 0, 0); !ok {
				return code
			}
			b := &bundle{Terminal: t, verbs: table(), deadline: time.Now().Add(bundleTimeout), secretValues: hide}
			return b.write(cmp.Or(*file, "hinit-bundle-"+time.Now().Format("20060102-150405")+".tar.gz"), *n)
		},
	}
}

// bundle collects the files of a bug report.
type bundle struct {
	*cli.Terminal
	verbs        []cli.Verb
	deadline     time.Time
	secretValues []string
	init         client.Init // status of the running init; empty if no init answers
}

// bundlePart is one file of a bundle. fill writes its text, and [bundle.collect] stores the text in content.
type bundlePart struct {
	name, description string
	writeContent      func(w io.Writer) error
	maxSize           int
	lastLines         int // number of last lines to keep, after the secrets are hidden; 0 or less means all
	content           []byte
}

func (b *bundle) write(file string, lines int) int {
	const doing = "write the bundle"
	out, report := b.RawOutput(), b.Err
	if file != "-" {
		f, err := wholefile.Create(file)
		if errors.Is(err, fs.ErrExist) {
			return b.Fail(cmdline.ExitFailed, "cannot %s: %q exists; name another file with -o", doing, file)
		}
		if err != nil {
			return b.ReportError(doing, err)
		}
		defer f.Close()
		out, report = f, b.Out
	}
	st, err := withDeadline(b.deadline.Add(-bundleTimeout*2/3), func() (client.Status, error) { return b.Status() })
	b.init = st.Init
	secrets := b.secrets(st)
	if err != nil && !errors.Is(err, client.ErrUnreachable) {
		secrets.unreadable = append(secrets.unreadable, "cannot ask hinit for its services: "+err.Error())
	}
	set := redact.NewSecrets(secrets.values)
	files := b.collect(append(b.parts(), b.logParts(lines)...))
	var list strings.Builder
	fmt.Fprintf(&list, "hinit bundle of %s, %s\n\n", time.Now().UTC().Format(time.RFC3339), version.Get())
	for _, why := range secrets.unreadable {
		fmt.Fprintln(&list, "not all secrets are hidden:", show.EscapeLine(why))
	}
	for i := range files {
		files[i].content = (&redact.Masker{}).Hide(files[i].content, set)
		if n := files[i].lastLines; n > 0 {
			lines := slices.Collect(bytes.Lines(files[i].content))
			files[i].content = bytes.Join(lines[max(0, len(lines)-n):], nil)
		}
		fmt.Fprintf(&list, "%-36s %7d bytes  %s\n", show.EscapeLine(files[i].name), len(files[i].content), files[i].description)
	}
	files = slices.Insert(files, 0, bundlePart{name: "CONTENTS.txt", content: []byte(list.String())})
	if err := writeTarGz(out, "hinit-bundle", files, time.Now()); err != nil {
		return b.ReportError(doing, err)
	}
	fmt.Fprint(report, list.String())
	if file != "-" {
		fmt.Fprintf(report, "\nwrote %s; secrets that hinit knows of are hidden; have a look at it before you send it\n", show.EscapeLine(file))
	}
	return cmdline.ExitDone
}

func (b *bundle) parts() []bundlePart {
	check := []string{"config", "check"}
	if b.init.ServicesFile != "" {
		check = append(check, b.init.ServicesFile, "--run")
	}
	return []bundlePart{
		b.commandPart("version.json", "this command", "version", "--json"),
		b.commandPart("healthcheck.txt", "whether hinit does its work", "healthcheck"),
		b.commandPart("status.txt", "services, boot steps and warnings", "status", "-v"),
		b.commandPart("status.json", "the same for programs", "status", "--json"),
		b.commandPart("events.ndjson", "what has happened", "events", "--json", "-n", "-1"),
		b.commandPart("doctor.txt", "what commonly goes wrong", "doctor"),
		b.commandPart("config.txt", "the configuration in force, and where each value came from", "config"),
		b.commandPart("config-check.txt", "what is wrong with the file as it is here", check...),
		b.commandPart("profiles.txt", "the profiles on the volume", "profile", "list"),
		b.commandPart("tree.txt", "the processes of each service", "tree"),
		{name: "gateway-states.txt", description: "what the gateways' state files say", writeContent: b.writeStates},
		{name: "environment.txt", description: "variables of this command and of process 1", writeContent: func(w io.Writer) error { return writeEnvironments(w, b.secretValues) }},
		{name: "kernel.txt", description: "kernel, limits, mounts and cgroup", writeContent: writeKernelFiles},
	}
}

// commandPart returns a part with the output of a command of hinit.
func (b *bundle) commandPart(name, about string, args ...string) bundlePart {
	return bundlePart{name: name, description: about, writeContent: func(w io.Writer) error {
		t := &cli.Terminal{In: b.In, Out: w, Err: w, Env: b.Env}
		for _, v := range b.verbs {
			if v.Name == args[0] {
				if code := v.Run(t, cli.NewCall(v, args[1:])); code != cmdline.ExitDone {
					fmt.Fprintf(w, "(exit code %d)\n", code)
				}
			}
		}
		return nil
	}}
}

// logParts returns a part with the last lines of each log.
func (b *bundle) logParts(lines int) (parts []bundlePart) {
	names, err := withDeadline(b.deadline.Add(-bundleTimeout/2), func() ([]string, error) { return logNames(b.Terminal) })
	if err != nil {
		return []bundlePart{{name: "logs.txt", description: "why there are none", writeContent: func(io.Writer) error { return err }}}
	}
	slices.Sort(names)
	for _, name := range names {
		read := lines
		if lines > 0 { // a private key may begin before the kept lines, so read more lines
			read += redact.MaxKeyLines
		}
		p := b.commandPart("logs/"+name+".log", "its last lines", "logs", "-n", strconv.Itoa(read), "--", name)
		p.lastLines, p.maxSize = lines, min(maxPartBytes, maxBundleLogBytes/len(names))
		parts = append(parts, p)
	}
	return parts
}

// withDeadline calls fn in a goroutine and returns its result. If fn hasn't returned at the time end, withDeadline returns an
// error, and fn continues.
func withDeadline[T any](end time.Time, fn func() (T, error)) (value T, err error) {
	done := make(chan func() (T, error), 1)
	go func() {
		v, err := fn()
		done <- func() (T, error) { return v, err }
	}()
	select {
	case result := <-done:
		return result()
	case <-time.After(time.Until(end)):
		return value, errors.New("no answer in time; does the volume hang?")
	}
}

// collect fills all parts, several at a time. A part that isn't ready in time stays incomplete.
func (b *bundle) collect(parts []bundlePart) []bundlePart {
	texts := make([]*partBuffer, len(parts))
	limit := make(chan struct{}, maxParallelParts)
	var all sync.WaitGroup
	for i, p := range parts {
		texts[i] = &partBuffer{maxSize: cmp.Or(p.maxSize, maxPartBytes)}
		all.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			if err := p.writeContent(texts[i]); err != nil {
				fmt.Fprintf(texts[i], "%v\n", err)
			}
			texts[i].finish("")
		})
	}
	_, _ = withDeadline(b.deadline, func() (struct{}, error) { all.Wait(); return struct{}{}, nil })
	for i := range parts {
		parts[i].content = texts[i].finish("(hinit bundle did not wait longer for this)\n")
	}
	return parts
}

// partBuffer collects the text of one part. It drops text after finish, and text beyond maxSize.
type partBuffer struct {
	mu       sync.Mutex
	text     bytes.Buffer
	maxSize  int
	finished bool
}

func (c *partBuffer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.finished {
		c.text.Write(p[:min(len(p), c.maxSize-c.text.Len())])
	}
	return len(p), nil
}

func (c *partBuffer) finish(late string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.finished {
		c.text.WriteString(late)
	}
	c.finished = true
	return c.text.Bytes()
}

// eachProfile calls fn for each profile on the volume. The store reads with the identity of the agent's user.
func (b *bundle) eachProfile(fn func(store *profiles.Store, p profiles.Profile)) error {
	cfg, agent, err := loadAgent(b.Terminal)
	if err != nil {
		return err
	}
	store := profiles.Open(cfg.Home, agent.WithTenants(cfg).HomesActor(cfg.Home), cfg.Profiles.Marker)
	all, _, err := store.Discover()
	for _, p := range all {
		fn(store, p)
	}
	return err
}

// writeStates writes the content of each gateway's state file, one line for each profile.
func (b *bundle) writeStates(w io.Writer) error {
	return b.eachProfile(func(store *profiles.Store, p profiles.Profile) {
		st, err := store.ReadState(p.Name)
		switch {
		case err != nil:
			fmt.Fprintf(w, "%s: %v\n", show.EscapeName(p.Name), err)
		case !st.Exists:
			fmt.Fprintf(w, "%s: no state file\n", show.EscapeName(p.Name))
		default:
			fmt.Fprintf(w, "%s: desired %q, gateway %q, pid %d, written %s, restart requested %v, exit reason %q, trouble %q\n", show.EscapeName(p.Name),
				st.Desired, st.Gateway, st.PID, st.Written.UTC().Format(time.RFC3339), st.RestartRequested, st.ExitReason, st.PlatformTrouble())
		}
	})
}

// kernelFiles are files of the kernel about the container and its limits.
var kernelFiles = []string{
	"/proc/version", "/etc/os-release", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max",
	"/proc/sys/fs/inotify/max_user_instances", "/proc/sys/fs/inotify/max_user_watches", "/proc/sys/vm/overcommit_memory",
	"/proc/self/cgroup", "/proc/self/mountinfo", "/proc/self/uid_map", "/proc/1/status", "/proc/1/limits", "/proc/1/oom_score_adj",
	"/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io",
	"/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.high",
	"/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.oom.group",
	"/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids.events",
	// Files of control groups version 1.
	"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/pids/pids.max",
}

// writeKernelFiles writes the content of each file in kernelFiles that exists.
func writeKernelFiles(w io.Writer) error {
	fmt.Fprintf(w, "== this command\nuid %d, gid %d, pid %d\n", os.Geteuid(), os.Getegid(), os.Getpid())
	for _, name := range kernelFiles {
		text, err := os.ReadFile(name)
		if of, one := strings.CutPrefix(name, "/proc/1/"); one {
			text, err = readProcOne(of)
		}
		if err == nil {
			fmt.Fprintf(w, "\n== %s\n%s\n", name, strings.TrimRight(string(text), "\n"))
		}
	}
	return nil
}

// readProcOne reads the file /proc/1/FILE. It returns an error if process 1 is not in the container of this process, but for
// example the init of the machine.
func readProcOne(file string) ([]byte, error) {
	one, _ := os.ReadFile("/proc/1/cgroup") // without control groups, the text is empty
	own, _ := os.ReadFile("/proc/self/cgroup")
	other := !bytes.Equal(one, own) && bytes.Contains(one, []byte("/.."))
	for _, same := range []string{"ns/mnt", "ns/pid"} {
		one, err := os.Readlink("/proc/1/" + same)
		own, ownErr := os.Readlink("/proc/self/" + same)
		other = other || err == nil && ownErr == nil && one != own
	}
	if other {
		return nil, errors.New("process 1 is in another container")
	}
	return os.ReadFile("/proc/1/" + file)
}

// writeEnvironments writes the environments of this process and of process 1. It hides the values of variables with secret names,
// and all values in hide.
func writeEnvironments(w io.Writer, hide []string) error {
	one, err := readProcOne("environ")
	if err != nil {
		fmt.Fprintf(w, "cannot read that of process 1: %v\n", err)
	}
	for _, from := range []struct {
		title string
		vars  []string
	}{{"this command", os.Environ()}, {"process 1", strings.Split(strings.TrimRight(string(one), "\x00"), "\x00")}} {
		fmt.Fprintf(w, "== %s\n", from.title)
		slices.Sort(from.vars)
		for _, pair := range from.vars {
			if name, value, ok := strings.Cut(pair, "="); ok {
				if slices.Contains(hide, name) {
					value = redact.Hidden
				}
				fmt.Fprintf(w, "%s=%s\n", show.EscapeLine(name), show.EscapeLine(redact.HideValue(name, value)))
			}
		}
	}
	return nil
}

// writeTarGz writes a tar.gz archive with the files in the directory dir.
func writeTarGz(w io.Writer, dir string, files []bundlePart, at time.Time) error {
	z := gzip.NewWriter(w)
	archive := tar.NewWriter(z)
	for _, f := range files {
		h := tar.Header{Name: dir + "/" + f.name, Mode: 0o600, Size: int64(len(f.content)), ModTime: at}
		if err := archive.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := archive.Write(f.content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), z.Close())
}
