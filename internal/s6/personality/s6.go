package personality

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/registry"
	"hinit/internal/s6/scandir"
	"hinit/shim/agentuser"
	"hinit/supervisor"
)

// Host is the part of PID 1 that the personality needs. Any goroutine may call its methods.
type Host interface {
	scandir.Host
	// Command carries out an operator's order to a service. It also records the state that the operator wants.
	Command(ctx context.Context, verb client.Verb, name string) error
	// CheckMayStart returns an error if the service is a gateway that must not start now.
	CheckMayStart(name string) error
	// Warn reports a warning, which the status command also shows.
	Warn(format string, args ...any)
}

// Settings describe the container that the personality serves.
type Settings struct {
	Agent       *fsutil.Actor // agent's user, who owns the scan directory
	Cred        *proc.Cred    // user of services; nil for hinit's own user
	Env         []string      // environment of the container
	StartedAt   time.Time     // start time of the container
	HasMainSlot bool          // whether to make the slot main-hermes for the CMD; no service has this name
}

// S6 makes PID 1 act as s6, for the programs of s6 and for the agent.
type S6 struct {
	*scandir.Scanner
	host      Host
	cred      *proc.Cred
	startedAt time.Time // start time of the container
}

func (w Settings) layout() scandir.Layout {
	g := scandir.Layout{ScanDir: scandir.DefaultScanDir, BaseDir: scandir.DefaultBaseDir, Agent: w.Agent, Env: w.Env}
	if dir := os.Getenv(scandir.ScanDirVariable); dir != "" {
		g.ScanDir = filepath.Clean(dir)
	}
	return g
}

// Publish implements [registry.SlotMaker].
func (s *S6) Publish(ctx context.Context, d registry.Slot) {
	if err := s.Scanner.Publish(ctx, d.Name, s.slotFiles(d), d.Down); err != nil && !errors.Is(err, context.Canceled) {
		s.host.Say("%v", err) // a warning would stay in the status even after the scanner has made the slot
	}
}

// Enqueue implements [registry.SlotMaker].
func (s *S6) Enqueue(d registry.Slot) { s.Scanner.Enqueue(d.Name, s.slotFiles(d), d.Down) }

const (
	// enableVar is the environment variable that turns the personality on or off in every image.
	enableVar = "HINIT_S6"
	// s6CommandDir is the directory of the programs of s6 in an image that was made for s6.
	s6CommandDir = "/command"
	// s6ProcessName is the name of PID 1's process by which the agent's commands recognise s6.
	s6ProcessName = "s6-svscan"
)

// ActsAsS6 reports whether this init must act as s6. The variable HINIT_S6 decides. Without it, an init with PID 1 acts as s6
// in an image made for s6.
func ActsAsS6() bool {
	if v, set := os.LookupEnv(enableVar); set && v != "" {
		return config.IsTruthy(v)
	}
	info, err := stat(s6CommandDir)
	return err == nil && info.IsDir() && os.Getpid() == 1
}

func stat(path string) (fs.FileInfo, error) {
	return blocking.Get(blocking.Foreign, func() (fs.FileInfo, error) { return os.Stat(path) })
}

// AgentPath returns the PATH of all processes that this init starts as the agent's user. home is the agent's home directory.
func AgentPath(home string) string {
	path := agentuser.AgentPath(os.Getenv("PATH"), home)
	if ActsAsS6() {
		path = withS6Commands(path)
	}
	return path
}

// withS6Commands puts the directories of s6 at the front of PATH, if they are missing.
func withS6Commands(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/bin", "/usr/bin", s6CommandDir} {
		if !slices.Contains(dirs, dir) {
			dirs = append([]string{dir}, dirs...)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}

// Handover is the state of the scan directory that a re-execution passes to the next program.
type Handover = scandir.Handover

// Emulation holds the personality of a container. A successful Open or TakeOver turns it on. Before that, the other methods do
// nothing. Any goroutine may call them.
type Emulation struct {
	host         Host
	setSlotMaker func(f registry.SlotMaker, exports map[string]map[string]string)
	settings     func() Settings
	s6           atomic.Pointer[S6]
}

// NewEmulation returns an Emulation whose personality is off. When the personality is turned on, the Emulation passes it to
// setSlotMaker, together with the variables that the script of each slot exports. setSlotMaker must make the registry report
// all slots to the personality.
func NewEmulation(host Host, setSlotMaker func(registry.SlotMaker, map[string]map[string]string), with func() Settings) *Emulation {
	return &Emulation{host: host, setSlotMaker: setSlotMaker, settings: with}
}

// S6 returns the personality, or nil while it is off.
func (w *Emulation) S6() *S6 { return w.s6.Load() }

// Open creates the directories of s6, and acts as s6 until ctx ends. If it fails, hinit continues without the personality.
func (w *Emulation) Open(ctx context.Context) error {
	with := w.settings()
	scanner, err := scandir.Open(ctx, w.host, with.layout())
	if err != nil {
		return fmt.Errorf("hinit does not answer as s6: %w", err)
	}
	// The name belongs to the whole process, not only to this thread (proc(5)).
	if err := os.WriteFile("/proc/self/comm", []byte(s6ProcessName), 0); err != nil {
		w.host.Warn("cannot be called %s, so the agent's commands do not find it: %v", s6ProcessName, err)
	}
	if with.HasMainSlot {
		run := shellScript(with.Cred, nil, "", []string{"sleep", "infinity"}, "This slot stands for the container. hinit runs nothing for it.")
		if err := scanner.PublishFixed(ctx, registry.MainSlotName, scandir.Files{Run: run}); err != nil {
			w.host.Say("%v", err) // the scanner tries again later
		}
	}
	w.activate(scanner, with)
	return nil
}

// TakeOver continues to act as s6 after a re-execution, if the old program did. It changes no file. Call it before the
// supervisor's loop runs, and call Start after that.
func (w *Emulation) TakeOver(old *Handover) {
	if old == nil {
		return
	}
	with := w.settings()
	scanner, err := scandir.TakeOver(w.host, with.layout(), old)
	if err != nil {
		w.host.Warn("hinit does not answer as s6 any more: %v", err)
		return
	}
	w.activate(scanner, with)
}

func (w *Emulation) activate(scanner *scandir.Scanner, with Settings) {
	s6 := &S6{scanner, w.host, with.Cred, with.StartedAt}
	w.s6.Store(s6)
	w.setSlotMaker(s6, s6.Exports())
}

// HandOver returns the state for TakeOver in the next program. While the personality is off, it returns nil.
func (w *Emulation) HandOver() *Handover {
	if s6 := w.S6(); s6 != nil {
		return s6.HandOver()
	}
	return nil
}

// HoldScanner stops the scanner for a re-execution, see [scandir.Scanner.Hold].
func (w *Emulation) HoldScanner() (release func(), err error) {
	if s6 := w.S6(); s6 != nil {
		return s6.Hold()
	}
	return func() {}, nil
}

// Start begins the work of the scanner after a re-execution.
func (w *Emulation) Start(ctx context.Context) {
	if s6 := w.S6(); s6 != nil {
		s6.Start(ctx)
	}
}

// Observe passes a record of the supervisor to the scanner, see [scandir.Scanner.Observe].
func (w *Emulation) Observe(r supervisor.Record) {
	if s6 := w.S6(); s6 != nil {
		s6.Observe(r)
	}
}

// SlotsMade returns a channel that is closed when all queued slots have been made. While the personality is off, it returns
// nil.
func (w *Emulation) SlotsMade() <-chan struct{} {
	if s6 := w.S6(); s6 != nil {
		return s6.QueueDone()
	}
	return nil
}

// slotFiles returns the scripts of a slot, for people: hinit never runs them. The agent can read them, so they contain no
// variables of services that run as root or another user: the values may be secrets.
func (s *S6) slotFiles(d registry.Slot) scandir.Files {
	if !reflect.DeepEqual(d.Cred, s.cred) {
		d.Env = nil
	}
	f := scandir.Files{Run: shellScript(d.Cred, d.Env, d.Dir, d.Argv, "hinit starts this service by itself and does not run this file. To run it does the same, but only the agent's services have their variables here.")}
	if d.HasFinish {
		f.Finish = finishScript(d.ParkExitCodes)
	}
	if d.Log != "" {
		size := strconv.Itoa(max(d.LogSizeMB, 1) * 1_000_000)
		argv := []string{s6CommandDir + "/s6-log", "1", "n" + strconv.Itoa(d.LogArchives), "s" + size, "T", d.Log}
		f.Log = shellScript(s.cred, nil, "", argv, "hinit writes this log by itself and does not run this file.")
	}
	return f
}

// shellScript returns a shell script that runs argv in the directory dir, with the variables in env, as the user cred. comment
// explains the script to people.
func shellScript(cred *proc.Cred, env map[string]string, dir string, argv []string, comment string) string {
	var b strings.Builder
	b.WriteString(shebangLine() + "# " + comment + "\nset -e\n")
	for _, name := range slices.Sorted(maps.Keys(env)) {
		b.WriteString("export " + name + "=" + shellQuote(env[name]) + "\n")
	}
	if dir != "" {
		b.WriteString("cd " + shellQuote(dir) + "\n")
	}
	words := make([]string, len(argv))
	for i, word := range argv {
		words[i] = shellQuote(word)
	}
	command := strings.Join(words, " ")
	if cred != nil { // use numbers, because the user may have another name in the image
		fmt.Fprintf(&b, "[ \"$(id -u)\" != 0 ] || exec %s/s6-setuidgid %d:%d %s\n", s6CommandDir, cred.UID, cred.GID, command)
	}
	b.WriteString("exec " + command + "\n")
	return b.String()
}

func finishScript(parkOn []int) string {
	var b strings.Builder
	b.WriteString(shebangLine() + "# hinit decides by itself, and does not run this file. After these codes it does not start the gateway again.\n")
	b.WriteString("case \"$1\" in\n")
	for _, code := range parkOn {
		fmt.Fprintf(&b, "  %d) exit 125 ;;\n", code)
	}
	b.WriteString("esac\nexit 0\n")
	return b.String()
}

// shebangLine returns the first line of the scripts in slots, which names the shell.
var shebangLine = sync.OnceValue(func() string {
	if _, err := stat(s6CommandDir + "/with-contenv"); err == nil {
		return "#!" + s6CommandDir + "/with-contenv sh\n"
	}
	return "#!/bin/sh\n"
})

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
