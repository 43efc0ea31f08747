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

// The two values of desired_state, the operator's intent.
const (
	Running = "running"
	Stopped = "stopped"
)

const (
	// StateFile is the name of the file in a profile's home that [State] is read from.
	StateFile   = "gateway_state.json"
	stateFile   = StateFile
	corruptFile = stateFile + ".corrupt"

	// maxState is the number of bytes that are read of a state file. Real ones have a few hundred.
	maxState = 1 << 20

	// stateTries bounds the repeats of a read-modify-write that collides with another program's write.
	stateTries = 5
)

// State is what gateway_state.json says. The zero value is "none": no file, or nothing usable in it. The gateway and the commands
// both write the file, so compare PID and StartTime with the process that really runs before believing Gateway.
type State struct {
	Exists     bool   // there is a file with a JSON object in it
	HasDesired bool   // desired_state is there and not null
	Desired    string // desired_state; a value that isn't a string as its JSON text
	HasGateway bool   // gateway_state is there and not null
	Gateway    string // gateway_state as the gateway wrote it, likewise

	PID              int    // of the gateway that wrote the file; 0 unknown
	StartTime        uint64 // of that process, clock ticks since boot (proc_pid_stat(5), field 22); 0 unknown
	RestartRequested bool
	ExitReason       string // "" none
	Active           int    // answers that the gateway works on

	Platforms int    // that it has
	Troubled  int    // of them: retrying or failed
	platforms string // result of Trouble

	HasServed bool   // served_profiles is there: the gateway says which profiles it serves
	served    string // they, each between two slashes

	// Written is the modification time of the file. Beat is when the gateway wrote it last, or the zero time if hinit or a command
	// has written it since. Equal leaves both out, and Active.
	Written, Beat time.Time
}

// Trouble says in one line which platforms the gateway calls retrying or failed, each with its message, in the order of their
// names; "" when there is none. The words are the gateway's: escape them before they reach a terminal.
func (s State) Trouble() string { return s.platforms }

// Serves reports whether the gateway says that it serves a profile.
func (s State) Serves(profile string) bool { return strings.Contains(s.served, "/"+profile+"/") }

// Equal reports whether o says the same, no matter when it was written.
func (s State) Equal(o State) bool {
	s.Written, o.Written, s.Beat, o.Beat = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	s.Active, o.Active = 0, 0
	return s == o
}

// Prior returns the state that counts at boot. It is the operator's intent if there is any, else the gateway's last state, with
// "draining" and "degraded" as "running". It is "None" if neither is known (contract, section 6).
func (s State) Prior() string {
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

// Start reports whether a gateway with this state is started at boot: when Prior is "running". One that was just starting, or
// failed to, is deliberately not retried (contract, section 6).
func (s State) Start() bool { return s.Prior() == Running }

// ReadState reads the gateway state of profile. A missing file is the zero State and no error. With an error, which names the file,
// the State is zero too; treat the error as a warning (contract, section 6).
func (s *Store) ReadState(profile string) (State, error) {
	var st State
	err := s.in(profile, func(d *fsutil.Dir, home string) (err error) {
		st, err = readState(d, home)
		return err
	})
	return st, err
}

func readState(d *fsutil.Dir, home string) (State, error) {
	rel := filepath.Join(home, stateFile)
	data, info, err := readStamped(d, rel)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	st, err := parseState(data)
	if err != nil {
		return State{}, fmt.Errorf("cannot read %q: %w", filepath.Join(d.Path(), rel), err)
	}
	st.Written = info.ModTime()
	return st, nil
}

// readStamped reads a file and describes exactly the version that it read, unless the file is being rewritten all the time.
func readStamped(d *fsutil.Dir, rel string) (data []byte, info fs.FileInfo, err error) {
	for range stateTries {
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

func parseState(data []byte) (State, error) {
	members, err := parseObject(data)
	if err != nil {
		return State{}, err
	}
	st := State{Exists: true}
	for _, m := range members { // in order: the last value of a repeated key counts, as in Python
		switch m.key {
		case "desired_state":
			st.Desired, st.HasDesired = text(m.value)
			st.Desired = kept(st.Desired, maxWord)
		case "gateway_state":
			st.Gateway, st.HasGateway = text(m.value)
			st.Gateway = kept(st.Gateway, maxWord)
		case "exit_reason":
			st.ExitReason, _ = text(m.value)
			st.ExitReason = kept(st.ExitReason, maxPlatformMessage)
		case "pid":
			st.PID, _ = strconv.Atoi(string(m.value))
		case "start_time":
			st.StartTime, _ = strconv.ParseUint(string(m.value), 10, 64)
		case "active_agents":
			st.Active, _ = strconv.Atoi(string(m.value))
			st.Active = max(st.Active, 0)
		case "restart_requested":
			st.RestartRequested = string(m.value) == "true"
		case "updated_at":
			st.Beat = beatOf(m.value)
		case "served_profiles":
			var names []string
			if json.Unmarshal(m.value, &names) == nil && names != nil {
				names = slices.DeleteFunc(names, func(name string) bool { return len(name) > maxWord || strings.Contains(name, "/") })
				st.HasServed, st.served = true, "/"+strings.Join(names[:min(len(names), maxServed)], "/")+"/"
			}
		case "platforms":
			st.platforms, st.Platforms, st.Troubled = platformTrouble(m.value)
		}
	}
	return st, nil
}

// Only so much of a state file is kept, because PID 1 keeps it for every profile, and the agent writes it. People read the messages in a table.
const (
	maxWord            = 64
	maxServed          = 2000 // as many profiles as are followed
	maxPlatforms       = 8
	maxPlatformMessage = 300
)

// shorten cuts a text after so many bytes, between two characters.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// kept returns a short copy of text, which does not hold the memory of a large file.
func kept(text string, most int) string { return strings.Clone(shorten(text, most)) }

// text returns a string's value, anything else as its JSON text, and false for null.
func text(value json.RawMessage) (string, bool) {
	var str string
	switch {
	case string(value) == "null":
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

// member is one key of an object. Key and value are as in the file, so numbers of any size, escapes and order survive a rewrite.
type member struct {
	key    string // decoded
	rawKey []byte // with its quotes
	value  json.RawMessage
}

// parseObject splits a JSON object into its members. A byte order mark before it is allowed.
func parseObject(data []byte) ([]member, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !utf8.Valid(data) {
		return nil, errors.New("it isn't UTF-8")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil { // also refuses text after the value
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
		m := member{key: tok.(string)} // the document is valid: a key it is
		raw := whole[from:dec.InputOffset()]
		m.rawKey = raw[bytes.IndexByte(raw, '"'):]
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return members, nil
}

// set writes the value at the first occurrence of key, and drops other occurrences. A new key comes last.
func set(members []member, key string, value []byte) []member {
	out := members[:0]
	done := false
	for _, m := range members {
		if m.key == key {
			if done {
				continue
			}
			m.value, done = value, true
		}
		out = append(out, m)
	}
	if !done {
		out = append(out, member{key: key, rawKey: []byte(strconv.Quote(key)), value: value})
	}
	return out
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

// SetDesired writes the operator's intent, [Running] or [Stopped], into the state file of profile, with updated_at in whole seconds
// since 1970. Everything else in the file stays as it is, to the byte; its mode too (a new file has 0644). When SetDesired returns
// nil, the intent is synced. No reader and no crash sees half a file.
//
// A file that holds no JSON object is moved to gateway_state.json.corrupt, and a new one takes its place. A missing home is
// [ErrNotExist]; a symbolic link in place of the file is refused.
//
// Writers in this process take turns. The gateway and the agent's commands don't know of that lock. SetDesired reads the file
// again right before it writes, and starts over if the file has changed. An update of another writer can get lost only during one
// small synced write. [Intents] handles the opposite case, a lost desired_state.
func (s *Store) SetDesired(profile, want string) error {
	defer s.lock(profile)()
	return s.setDesired(profile, want, synced)
}

// durability names the failures that a finished write survives. It survives the end of this process in any case.
type durability bool

const (
	soon   durability = false // survives a crash of the machine only after syncState
	synced durability = true  // survives a crash of the machine
)

// syncState ends a write that was to be synced soon.
func (s *Store) syncState(profile string) error {
	return s.in(profile, func(d *fsutil.Dir, home string) error {
		err := d.SyncName(filepath.Join(home, stateFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a profile that is gone again has nothing to lose
			return fmt.Errorf("cannot set the desired state of profile %q: %w", profile, err)
		}
		return nil
	})
}

// setDesired needs the lock of profile.
func (s *Store) setDesired(profile, want string, how durability) error {
	if want != Running && want != Stopped {
		return fmt.Errorf("cannot set the desired state of profile %q: want %q or %q, not %q", profile, Running, Stopped, want)
	}
	return s.in(profile, func(d *fsutil.Dir, home string) error { return s.setDesiredIn(d, home, profile, want, how) })
}

// setDesiredIn is setDesired for a caller that has the volume open.
func (s *Store) setDesiredIn(d *fsutil.Dir, home, profile, want string, how durability) error {
	if err := homeExists(d, home); err != nil {
		return fmt.Errorf("cannot set the desired state of profile %q: %w", profile, err)
	}
	for try := 1; ; try++ {
		ok, err := s.trySetDesired(d, filepath.Join(home, stateFile), want, try >= stateTries, how)
		if ok {
			reserve(d, home)
		}
		if ok || err != nil {
			return err
		}
	}
}

// trySetDesired does one round of read, merge and write. It reports false when the file changed meanwhile, unless force.
func (s *Store) trySetDesired(d *fsutil.Dir, rel, want string, force bool, how durability) (bool, error) {
	data, info, err := readStamped(d, rel)
	var members []member
	mode := fs.FileMode(0o644)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info = nil
	case errors.Is(err, fsutil.ErrTooLarge):
	case err != nil:
		return false, err
	}
	if info != nil {
		mode = info.Mode().Perm()
		if err == nil {
			members, err = parseObject(data)
		}
		if err != nil { // corrupt or too large
			err := d.Rename(rel, filepath.Join(filepath.Dir(rel), corruptFile))
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil // gone since: look again
			}
			if err != nil {
				return false, err
			}
			info, members = nil, nil
		}
	}
	members = set(members, "desired_state", []byte(strconv.Quote(want)))
	members = set(members, "updated_at", strconv.AppendInt(nil, s.now().Unix(), 10))

	data = encodeObject(members)
	err = d.Replace(rel, data, fsutil.ReplaceOptions{Mode: mode, KeepMode: true, NameLater: how == soon, Confirm: func(now fs.FileInfo) error {
		if same := (now == nil) == (info == nil) && (now == nil || stampOf(now) == stampOf(info)); !same && !force {
			return errChanged
		}
		return nil
	}})
	if errors.Is(err, errChanged) {
		return false, nil
	}
	if full(err) && spend(d, filepath.Dir(rel), rel, data, mode) == nil {
		err = nil
	}
	return err == nil, err
}

// errChanged says that another program has written a file since it was read.
var errChanged = errors.New("it has changed meanwhile")

// homeExists is [ErrNotExist] when there is no directory at home.
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

// stateError returns the warning about a state file that is ignored.
func stateError(profile string, err error) error {
	return fmt.Errorf("cannot use the state of profile %q: %w", profile, err)
}
