package profiles

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"hinit/internal/fsutil"
)

// The two values of desired_state, which is the operator's intent.
const (
	Running = "running"
	Stopped = "stopped"
)

const (
	// StateFile is the name of the file with the [State] in a profile's home.
	StateFile   = "gateway_state.json"
	corruptFile = StateFile + ".corrupt"

	// maxState is the maximum size in bytes of a state file that hinit reads. Most have a few hundred bytes, but a gateway that
	// serves thousands of profiles lists all of them.
	maxState = 256 << 10

	// maxStateCommas limits the number of values in a state file, because parsing each takes time in PID 1.
	maxStateCommas = 10_000

	// maxStateTries is how often a read, or a change, of the file is attempted while another program keeps writing it.
	maxStateTries = 5
)

// State is the content of gateway_state.json in a profile's home. It is zero if the file is missing or unusable. The gateway and
// the agent's commands write the file, and the file stays when the gateway ends. So the field Gateway may describe a gateway that
// has ended: compare PID and StartTime with the running process.
type State struct {
	Exists     bool   // Whether the file exists and is a JSON object.
	HasDesired bool   // Whether desired_state exists and is not null.
	Desired    string // Value of desired_state; if it isn't a string, its JSON text.
	HasGateway bool   // Whether gateway_state exists and is not null.
	Gateway    string // Value of gateway_state, which the gateway writes; if it isn't a string, its JSON text.

	PID               int    // PID of the gateway that wrote the file; 0 if unknown.
	StartTime         uint64 // Start time of the process PID, in clock ticks since the machine booted (proc_pid_stat(5), field 22); 0 if unknown.
	RestartRequested  bool
	ExitReason        string // Value of exit_reason; "" if the file has none.
	AnswersInProgress int    // Number of answers that the gateway is working on.

	Platforms         int    // Number of chat platforms of the gateway.
	TroubledPlatforms int    // Number of platforms that are retrying or have failed.
	platformTrouble   string // Result of the method PlatformTrouble.

	HasServed bool   // Whether served_profiles exists, so that the gateway reports which profiles it serves.
	served    string // Names in served_profiles, each between two slashes: "/a/b/".

	// Written is the modification time of the file. Heartbeat is the time of the gateway's last write, or zero if another program
	// has written the file since. Equal ignores both.
	Written, Heartbeat time.Time
	size               int // Size of the file in bytes.
}

// PlatformTrouble describes the chat platforms that are retrying or have failed, each with its message, in one line sorted by
// name. It returns "" if there are none. The gateway controls the text, so escape it before you print it on a terminal.
func (s State) PlatformTrouble() string { return s.platformTrouble }

// Serves reports whether served_profiles says that the gateway serves a profile.
func (s State) Serves(profile string) bool { return strings.Contains(s.served, "/"+profile+"/") }

// Equal reports whether s and o have the same content. It ignores AnswersInProgress, the size and
// the times of writes, which change all the time.
func (s State) Equal(o State) bool {
	s.Written, o.Written, s.Heartbeat, o.Heartbeat = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	s.AnswersInProgress, o.AnswersInProgress, s.size, o.size = 0, 0, 0, 0
	return s == o
}

// PriorState returns the state on which the boot bases its decision to start the gateway. It is the operator's intent. Without an
// intent, it is the last state of the gateway, and "draining" and "degraded" count as "running". If neither is known, it is
// "None" (contract, section 6).
func (s State) PriorState() string {
	switch {
	case s.HasDesired:
		return s.Desired
	case !s.HasGateway:
		return "None"
	case s.Gateway == "draining" || s.Gateway == "degraded":
		return Running
	}
	return s.Gateway
}

// ShouldRun reports whether a gateway with this state should run, which is the case if PriorState
// is "running". The boot applies the same rule. It deliberately doesn't start a gateway that was
// still starting or had failed to start (contract, section 6).
func (s State) ShouldRun() bool { return s.PriorState() == Running }

// ReadState reads the gateway state of a profile. If the file is missing, it returns the zero State and no error. An error names
// the file, and comes with the zero State; treat it as a warning (contract, section 6).
func (s *Store) ReadState(profile string) (State, error) { return readHome(s, profile, readState) }

func readState(d *fsutil.Dir, home string) (State, error) {
	rel := filepath.Join(home, StateFile)
	data, info, err := readStamped(d, rel)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	st, err := parseState(data)
	if err != nil {
		return State{size: len(data)}, fmt.Errorf("cannot read %q: %w", filepath.Join(d.Path(), rel), err)
	}
	st.Written, st.size = info.ModTime(), len(data)
	return st, nil
}

// readStamped returns the content of a file, with the metadata of the same version. If other programs keep replacing the file, it
// gives up after maxStateTries attempts. Then the metadata may be newer than the content.
func readStamped(d *fsutil.Dir, rel string) (data []byte, info fs.FileInfo, err error) {
	for range maxStateTries {
		before, err := d.Lstat(rel)
		if err != nil {
			return nil, nil, err
		}
		if data, err = d.ReadFile(rel, maxState); err != nil {
			return nil, before, err
		}
		if info, err = d.Lstat(rel); err != nil {
			return nil, nil, err
		}
		if stampOf(before) == stampOf(info) {
			break
		}
	}
	return data, info, nil
}

// parseState parses the content of a state file. It ignores unknown keys and values of an unexpected type. The agent writes most
// of the file, so parseState limits the length of each text that it keeps.
func parseState(data []byte) (State, error) {
	members, err := parseObject(data)
	if err != nil {
		return State{}, err
	}
	st := State{Exists: true}
	for _, m := range members { // Use the file's order, so that the last value of a repeated key counts, as in Python.
		switch m.key {
		case "desired_state":
			st.Desired, st.HasDesired = shortText(m.value, maxWord)
		case "gateway_state":
			st.Gateway, st.HasGateway = shortText(m.value, maxWord)
		case "exit_reason":
			st.ExitReason, _ = shortText(m.value, maxPlatformMessage)
		case "pid":
			st.PID, _ = strconv.Atoi(string(m.value))
		case "start_time":
			st.StartTime, _ = strconv.ParseUint(string(m.value), 10, 64)
		case "active_agents":
			st.AnswersInProgress, _ = strconv.Atoi(string(m.value))
			st.AnswersInProgress = max(st.AnswersInProgress, 0)
		case "restart_requested":
			st.RestartRequested = string(m.value) == "true"
		case "updated_at":
			st.Heartbeat = heartbeatOf(m.value)
		case "served_profiles":
			var names []string
			if json.Unmarshal(m.value, &names) == nil && names != nil {
				names = slices.DeleteFunc(names, func(name string) bool { return len(name) > maxWord || strings.Contains(name, "/") })
				st.HasServed, st.served = true, "/"+strings.Join(names[:min(len(names), maxServed)], "/")+"/"
			}
		case "platforms":
			st.platformTrouble, st.Platforms, st.TroubledPlatforms = parsePlatforms(m.value)
		}
	}
	return st, nil
}

// Limits on the parts of a state file that PID 1 keeps for each profile, because the agent controls them. Messages must also fit
// into a table on the screen.
const (
	maxWord            = 64
	maxServed          = 2000 // Maximum number of served profiles: the default of profiles.max.
	maxPlatforms       = 8
	maxPlatformMessage = 300
)

// shorten cuts text to at most `limit` bytes, at the end of a character. If it has cut the text, it appends "…".
func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}

// shortText is jsonText, shortened to at most `limit` bytes. The result is a copy, so that it doesn't keep the whole file in
// memory.
func shortText(value json.RawMessage, limit int) (string, bool) {
	text, is := jsonText(value)
	return strings.Clone(shorten(text, limit)), is
}

// jsonText returns the decoded text of a JSON string, or the JSON text of any other value. For null, and without a value, the
// second result is false.
func jsonText(value json.RawMessage) (string, bool) {
	var str string
	switch {
	case len(value) == 0, string(value) == "null":
		return "", false
	case value[0] == '"' && json.Unmarshal(value, &str) == nil:
		return str, true
	}
	var compact bytes.Buffer
	if json.Compact(&compact, value) != nil {
		return string(value), true
	}
	return compact.String(), true
}

// member is a key of a JSON object with its value, as the bytes of the file. So a rewrite preserves numbers of any size, escapes
// and the order.
type member struct {
	key    string // The decoded key.
	rawKey []byte // The key with its quotes, as in the file.
	value  json.RawMessage
}

// parseObject splits a JSON object into its members. It accepts a byte order mark at the beginning.
func parseObject(data []byte) ([]member, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	switch {
	case !utf8.Valid(data):
		return nil, errors.New("it isn't UTF-8")
	case bytes.Count(data, []byte(",")) > maxStateCommas:
		return nil, fmt.Errorf("it has more than %d values", maxStateCommas)
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil { // Unmarshal also refuses text after the object.
		return nil, fmt.Errorf("it isn't JSON: %w", err)
	}
	if whole[0] != '{' {
		return nil, errors.New("it isn't a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(whole))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	var members []member
	for dec.More() {
		from := dec.InputOffset()
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m := member{key: tok.(string)} // The whole text is valid JSON, so this token is a key.
		raw := whole[from:dec.InputOffset()]
		m.rawKey = raw[bytes.IndexByte(raw, '"'):]
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return members, nil
}

// setMember sets the value of key at its first occurrence, and removes later ones. If the key is missing, it appends it.
func setMember(members []member, key string, value []byte) []member {
	isKey := func(m member) bool { return m.key == key }
	i := slices.IndexFunc(members, isKey)
	if i < 0 {
		return append(members, member{key: key, rawKey: []byte(strconv.Quote(key)), value: value})
	}
	members[i].value = value
	return append(members[:i+1], slices.DeleteFunc(members[i+1:], isKey)...)
}

func encodeObject(members []member) []byte {
	var b bytes.Buffer
	for i, m := range members {
		b.WriteByte("{,"[min(i, 1)])
		b.Write(m.rawKey)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteString("}\n")
	return b.Bytes()
}

// syncState makes earlier writes of the state file without sync survive a crash of the machine.
func (s *Store) syncState(profile string) error {
	return s.WithHome(profile, func(d *fsutil.Dir, home string) error {
		err := d.SyncParentDir(filepath.Join(home, StateFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // A removed profile needs no sync.
			return fmt.Errorf("cannot set the desired state of profile %q: %w", profile, err)
		}
		return nil
	})
}

// setDesired writes the operator's intent, [Running] or [Stopped], into the state file of profile, and sets updated_at to the
// current time in whole seconds. All other bytes of the file stay the same, and so does its mode (a new file has 0644). No reader
// ever sees half a file, even after a crash.
//
// If the file isn't a JSON object, it is renamed to gateway_state.json.corrupt, and a new file replaces it. If the home is
// missing, the error is [ErrNotExist]. A symbolic link instead of the file is an error.
//
// The lock of a profile excludes other writers in this process, but neither the gateway nor the agent's commands. So setDesired
// checks, just before it replaces the file, whether the file has changed, and if so starts again. An update by another writer is
// lost if it comes between this check and the replacement, or if the file changes during each of maxStateTries attempts. In the
// opposite case another writer overwrites desired_state, which [Intents] repairs.
//
// Without sync, a crash of the machine may restore the old file until syncState is called. The caller holds the lock of profile.
func (s *Store) setDesired(profile, want string, sync bool) error {
	if want != Running && want != Stopped {
		return fmt.Errorf("cannot set the desired state of profile %q: want %q or %q, not %q", profile, Running, Stopped, want)
	}
	return s.WithHome(profile, func(d *fsutil.Dir, home string) error { return s.setDesiredIn(d, home, profile, want, sync) })
}

// setDesiredIn is setDesired for an open volume. home is relative to d.
func (s *Store) setDesiredIn(d *fsutil.Dir, home, profile, want string, sync bool) error {
	if err := homeExists(d, home); err != nil {
		return fmt.Errorf("cannot set the desired state of profile %q: %w", profile, err)
	}
	for try := 1; ; try++ {
		ok, err := s.trySetDesired(d, filepath.Join(home, StateFile), want, try >= maxStateTries, sync)
		if ok {
			makeReserve(d, home)
		}
		if ok || err != nil {
			return err
		}
	}
}

// trySetDesired makes one attempt to read, change and write the state file rel. If another program has changed the file
// meanwhile, it returns false. With force it overwrites that change.
func (s *Store) trySetDesired(d *fsutil.Dir, rel, want string, force, sync bool) (bool, error) {
	data, info, err := readStamped(d, rel)
	var members []member
	mode := fs.FileMode(0o644)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info = nil
	case err != nil && !errors.Is(err, fsutil.ErrTooLarge):
		return false, err
	default:
		mode = info.Mode().Perm()
		if err == nil {
			members, err = parseObject(data)
		}
		if err != nil { // The file is too large, or not a JSON object.
			err := d.Rename(rel, filepath.Join(filepath.Dir(rel), corruptFile))
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil // The file was just removed, so start again.
			}
			if err != nil {
				return false, err
			}
			info, members = nil, nil
		}
	}
	members = setMember(members, "desired_state", []byte(strconv.Quote(want)))
	members = setMember(members, "updated_at", strconv.AppendInt(nil, s.now().Unix(), 10))

	data = encodeObject(members)
	err = d.Replace(rel, data, fsutil.ReplaceOptions{Mode: mode, KeepMode: true, SyncDirLater: !sync, BeforeRename: func(now fs.FileInfo) error {
		if same := (now == nil) == (info == nil) && (now == nil || stampOf(now) == stampOf(info)); !same && !force {
			return errFileChanged
		}
		return nil
	}})
	if errors.Is(err, errFileChanged) {
		return false, nil
	}
	if isDiskFull(err) && writeOverReserve(d, filepath.Dir(rel), rel, data, mode) == nil {
		err = nil
	}
	return err == nil, err
}

// errFileChanged means that another program has written the file since this process read it.
var errFileChanged = errors.New("it has changed meanwhile")

// homeExists returns [ErrNotExist] if home is missing or no directory, and another error if it is a symbolic link.
func homeExists(d *fsutil.Dir, home string) error {
	info, err := d.Lstat(home)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrNotExist
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%q: %w", filepath.Join(d.Path(), home), fsutil.ErrSymlink)
	case !info.IsDir():
		return ErrNotExist
	}
	return nil
}
