package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/internal/fsutil"
)

// multiplexVar is the environment variable that switches multiplexing. It overrides the agent's configuration, see
// [Store.Topology].
const multiplexVar = "GATEWAY_MULTIPLEX_PROFILES"

// Files in a profile's home that Reconcile reads or removes.
const (
	processesFile = "processes.json"
	lifecycleFile = "state/gateway.lifecycle.json"
	configFile    = "config.yaml"

	maxConfig = 4 << 20
)

// How the previous gateway ended, in the words of the boot log (contract, section 6.2).
const (
	ExitClean   = "clean"
	ExitUnclean = "unclean"
	ExitUnknown = "unknown"
)

// BootOptions are the inputs of Reconcile, in addition to the files on the volume.
type BootOptions struct {
	// OnlyDashboard says that the container runs only the dashboard. Then Reconcile decides nothing (contract, section 3.2).
	OnlyDashboard bool
	// CMDAsksForGateway says that the container's CMD asks for the default gateway. If this gateway has no state file, it then
	// starts (contract, section 5, step 3).
	CMDAsksForGateway bool
	// CMDIsGateway says that the container's CMD is itself the default gateway. Then the boot must not start a second one, whatever
	// the state file says (contract, section 3.1).
	CMDIsGateway bool
	// Getenv returns a variable of the container's environment. If it is nil, the environment is empty.
	Getenv func(string) string
	// OnFound, if not nil, is called with the number of profiles, including the default profile. Reconcile has then decided about
	// the default profile only.
	OnFound func(profiles int)
	// OnDecision, if not nil, is called for each decision, in order, so that gateways can start before all decisions are made. It is
	// called as the user of this process, not as the agent's user. All calls have returned before the boot log is written.
	OnDecision func(Decision)
	// Log is called with the function write, which writes the boot log, unless the log gets no lines. Log must call write after
	// the gateways have started, because the boot log reports their starts. If Log is nil, Reconcile writes the boot log itself.
	Log func(write func() error)
}

// Decision is the decision of Reconcile about one profile, with the reason.
type Decision struct {
	Profile    Profile
	PriorState string    // State on which the decision is based, see [State.PriorState].
	PriorExit  string    // End of the previous gateway: ExitClean, ExitUnclean or ExitUnknown.
	Start      bool      // Whether the boot starts the gateway; otherwise it only registers the gateway.
	LastUsed   time.Time // Time of the agent's last use, from the timestamps of its files.
}

// Plan is the result of Reconcile.
type Plan struct {
	// Topology says whether the default gateway serves all profiles. If so, the boot starts no other gateway.
	Topology Topology
	// SilentHomes lists profile directories that did not answer; nothing is decided about them. When such a directory answers,
	// the watcher reports the profile, and its gateway starts if it ran before.
	SilentHomes []string
	// ListingSilent says that the directory profiles/ itself did not answer. Then nothing is decided about any profile in it, as for
	// SilentHomes.
	ListingSilent bool
	// Profiles has a decision for each profile, the default profile first. It is empty only in a dashboard container.
	Profiles []Decision
	// Lines are messages for the container's standard output, without line ends.
	Lines []string
	// Warnings are messages for the container's standard error. They never stop the boot. They don't include conditions that may
	// last, such as an unreadable state file: the [Watcher] reports these, and knows when they end.
	Warnings []Warning

	reported int // Number of decisions that were already passed to OnDecision.
}

// Reconcile decides at boot which gateways start (contract, section 5). It starts no gateway. It writes the boot log, and removes
// stale files of earlier gateways and temporary files of interrupted writes. No gateway may run during the call, because every
// gateway.pid counts as stale.
//
// If a gateway overwrote a desired_state by accident just before the last container ended, Reconcile restores the order by the
// rules of [Intents].
//
// Reconcile never fails. If a file can't be read or written, it adds a warning and decides by the other files. It blocks on the
// disk.
func (s *Store) Reconcile(o BootOptions) Plan {
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	if o.OnlyDashboard {
		return Plan{Lines: []string{"reconcile: skipping (dashboard container — does not need per-profile gateways)"}}
	}

	var p Plan
	s.decideAll(&p, o)
	if len(p.Profiles) == 0 {
		p.addDecision(Decision{Profile: s.profile(Default), PriorState: State{}.PriorState(), PriorExit: ExitUnknown})
		p.reportDecisions(o)
		return p // The boot log is on the volume, which can't be used.
	}
	p.reportDecisions(o)
	at := s.now()
	write := func() error {
		_, err := examineEach(s, func(d *fsutil.Dir, _ reportProgress) (any, error) { return nil, appendBootLog(d, at, p.Profiles) })
		return err
	}
	if o.Log != nil {
		o.Log(write)
	} else if err := write(); err != nil {
		p.warn("", "cannot write the boot log: %v", err)
	}
	return p
}

// decisionBatch is the number of profiles that are decided before OnDecision is called for them. Opening the volume once for
// several profiles is cheaper, and the first gateways still don't wait for the last profile.
const decisionBatch = 16

// reportDecisions calls o.OnDecision for the decisions that were made since the last call.
func (p *Plan) reportDecisions(o BootOptions) {
	for _, dec := range p.Profiles[p.reported:] {
		if o.OnDecision != nil {
			o.OnDecision(dec)
		}
	}
	p.reported = len(p.Profiles)
}

// decideAll decides about each profile, the default profile first. If the volume can't be used, it stops; the [Watcher] reports
// that.
func (s *Store) decideAll(p *Plan, o BootOptions) {
	err := s.withVolume(func(d *fsutil.Dir) error {
		migrated := o.CMDAsksForGateway && s.migrateStateless(d, p)
		var err error
		if p.Topology, err = topology(d, ".", o.Getenv, ""); err != nil {
			p.warn(Default, "cannot tell whether profiles are multiplexed: %v", err)
		}
		s.reconcileOne(d, p, Default, func(dec *Decision) bool {
			if migrated { // the profile counts as running even if migrateStateless could not write its state file
				dec.PriorState = Running
			}
			return dec.PriorState == Running && !o.CMDIsGateway
		})
		return nil
	})
	if err != nil {
		return
	}
	final := !p.Topology.Multiplexed // A multiplexed gateway also uses the homes of other profiles, so they are cleaned before it starts.
	if final {
		p.reportDecisions(o)
	}
	l, err := s.list(preferNone)
	p.SilentHomes, p.ListingSilent = l.silentDirs, errors.Is(err, errNoAnswer)
	if o.OnFound != nil {
		o.OnFound(1 + len(l.marked))
	}
	for names := range slices.Chunk(l.marked, decisionBatch) {
		err := s.withVolume(func(d *fsutil.Dir) error {
			for _, name := range names {
				s.reconcileOne(d, p, name, func(dec *Decision) bool { return dec.PriorState == Running && !p.Topology.Multiplexed })
			}
			return nil
		})
		if err != nil {
			return
		}
		if final {
			p.reportDecisions(o)
		}
	}
}

// reconcileOne decides about the profile name and removes stale files from its home. start gets the incomplete decision, and
// reports whether the boot must start the gateway.
func (s *Store) reconcileOne(d *fsutil.Dir, p *Plan, name string, start func(*Decision) bool) {
	dec, home := Decision{Profile: s.profile(name), PriorExit: ExitUnknown}, homeOfValidName(name)
	// Work relative to the open home: its paths are shorter, so that the kernel resolves them faster. If the home can't be
	// opened, the calls below report the error.
	if sub, err := d.OpenSubdir(home); err == nil {
		defer sub.Close()
		d, home = sub, "."
	}
	names := existingFiles(d, home)
	var st State
	if slices.Contains(names, StateFile) {
		st, _ = readState(d, home) // The Watcher reports the error.
	}
	if slices.Contains(names, intentFile) && s.restoreRecorded(d, home, &st) {
		unlock := s.lock(name)
		err := s.setDesiredIn(d, home, name, st.Desired, true)
		unlock()
		if err != nil {
			p.warn(name, "%v", err)
		}
	}
	dec.PriorState = st.PriorState()
	if slices.Contains(names, filepath.Dir(lifecycleFile)) {
		dec.PriorExit = priorExit(d, home)
	}
	for _, name := range activityFiles {
		if !slices.Contains(names, name) {
			continue
		}
		if info, err := d.Lstat(filepath.Join(home, name)); err == nil && info.ModTime().After(dec.LastUsed) {
			dec.LastUsed = info.ModTime()
		}
	}
	// Remove what an earlier gateway or an interrupted write has left. Remove only existing files: on a read-only volume, even
	// the removal of a missing file fails.
	for _, file := range names {
		if file != pidFile && file != processesFile && !isTempFile(file) {
			continue
		}
		if err := removeIfExists(d, filepath.Join(home, file)); err != nil {
			p.warn(name, "cannot remove a stale file of profile %q: %v", name, err)
		}
	}
	dec.Start = start(&dec)
	p.addDecision(dec)
}

// activityFiles lists the files whose modification times show when the agent was last used.
var activityFiles = [...]string{"state.db", "sessions"}

// existingFiles returns which of the files that Reconcile needs exist in a home. It lists the directory, which is cheaper than a
// system call for each file. If the home has many other names or can't be listed, it examines each file by name. Temporary files
// that it then misses stay until the next boot.
func existingFiles(d *fsutil.Dir, home string) (found []string) {
	seen := 0
	wanted := [...]string{activityFiles[0], activityFiles[1], StateFile, intentFile, filepath.Dir(lifecycleFile), pidFile, processesFile}
	err := d.EachName(home, func(name string, _ fs.FileMode) bool {
		if slices.Contains(wanted[:], name) || isTempFile(name) {
			found = append(found, name)
		}
		seen++
		return seen < fsutil.MaxDirNames
	})
	if err == nil && seen < fsutil.MaxDirNames {
		return found
	}
	for _, name := range wanted {
		if !slices.Contains(found, name) && !errors.Is(d.CheckExists(filepath.Join(home, name)), fs.ErrNotExist) {
			found = append(found, name)
		}
	}
	return found
}

func isTempFile(name string) bool {
	rest, temporary := strings.CutSuffix(name, ".tmp")
	return temporary && slices.ContainsFunc([]string{intentFile, StateFile, plannedStopFile, reserveFile, ActiveFile, topologyFile, slowStopFile, envFile, configFile, "auth.json"}, func(file string) bool {
		return strings.HasPrefix(rest, "."+file+".")
	})
}

// addDecision adds the decision dec to the plan, with a line for the container's output.
func (p *Plan) addDecision(dec Decision) {
	p.Profiles = append(p.Profiles, dec)
	p.Lines = append(p.Lines, "reconcile: "+dec.logFields())
}

func (p *Plan) warn(profile, format string, args ...any) {
	p.Warnings = append(p.Warnings, Warning{Profile: profile, Message: fmt.Sprintf(format, args...)})
}

// migrateStateless handles a volume that has no state file, because it is older than desired states. If the CMD runs the gateway,
// the default gateway must run. The function then records that in a new state file and returns true (contract, section 5, step 3).
func (s *Store) migrateStateless(d *fsutil.Dir, p *Plan) bool {
	if _, err := d.Lstat(StateFile); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	content := fmt.Sprintf(`{"gateway_state": "running", "desired_state": "running", "timestamp": %d, `+
		`"migrated_from": "legacy-container-cmd"}`+"\n", s.now().Unix())
	if err := d.Replace(StateFile, []byte(content), fsutil.ReplaceOptions{Mode: 0o644, KeepMode: true}); err != nil {
		p.warn(Default, "cannot record that the default gateway is wanted: %v", err)
	}
	return true
}

// priorExit returns how the last gateway of the profile ended: ExitClean, ExitUnclean or ExitUnknown. Newer gateways record it in
// the lifecycle file.
func priorExit(d *fsutil.Dir, home string) string {
	var ledger struct {
		Phase string `json:"phase"`
	}
	if !readMarker(d, filepath.Join(home, lifecycleFile), &ledger) {
		return ExitUnknown
	}
	switch ledger.Phase {
	case "exited":
		return ExitClean
	case "running":
		return ExitUnclean
	}
	return ExitUnknown
}

// The boot log is a file on the volume. Each boot appends a line for each profile (contract, section 5.1).
const (
	logsDir    = "logs"
	bootLog    = logsDir + "/container-boot.log"
	maxBootLog = 262144 // Size in bytes above which the next boot rotates the log.

	bootLogTime = "2006-01-02T15:04:05-0700" // Layout of the time, which is local time.
)

// appendBootLog appends the decisions of Reconcile to the boot log. If the log is too large, it first renames it to
// container-boot.log.1.
func appendBootLog(d *fsutil.Dir, at time.Time, decisions []Decision) error {
	var b strings.Builder
	for _, dec := range decisions {
		fmt.Fprintf(&b, "%s %s prior_exit=%s\n", at.Local().Format(bootLogTime), dec.logFields(), dec.PriorExit)
	}
	if err := d.Mkdir(logsDir, 0o755); err != nil {
		return err
	}
	var rotateErr error
	info, err := d.Lstat(bootLog)
	if err == nil && info.Size() >= maxBootLog {
		rotateErr = d.Rename(bootLog, bootLog+".1")
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		rotateErr = err
	}
	return errors.Join(rotateErr, d.Append(bootLog, []byte(b.String()), 0o644))
}

// logFields returns the fields of a decision that appear both in the boot log and in the container's output.
func (dec Decision) logFields() string {
	action := "registered"
	if dec.Start {
		action = "started"
	}
	return fmt.Sprintf("profile=%s prior_state=%s action=%s", dec.Profile.Name, quoteField(dec.PriorState), action)
}

// quoteField formats a value from one of the agent's files for a log line. It quotes a value that is empty or long, or that
// contains characters that would end the field or the line.
func quoteField(value string) string {
	const long = 64
	if value != "" && len(value) <= long && !strings.ContainsFunc(value, func(c rune) bool { return c < '!' || c > '~' || c == '"' }) {
		return value
	}
	if len(value) > long {
		value = strings.ToValidUTF8(value[:long], "") + "..."
	}
	return strings.ReplaceAll(strconv.QuoteToASCII(value), " ", `\x20`)
}
