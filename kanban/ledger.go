package kanban

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"hinit/internal/procstat"
)

// entry is what a dispatcher remembers of a worker that it started, or was about to start when its PID is 0. It is kept beside the
// board, whose columns belong to all its writers.
type entry struct {
	Run  int64  `json:"run,omitempty"`
	Task string `json:"task,omitempty"`
	Host string `json:"host,omitempty"`
	Lock string `json:"lock,omitempty"` // an entry of its own: a dispatcher made claims with it
	Worker
}

// ledger is the file of entries, one JSON object a line, the last one of a run counts. Whoever holds the tick lock writes it. It
// needs no sync: what it is for is the death of a dispatcher, and after that of the machine no worker is left.
type ledger struct {
	path  string
	runs  map[int64]entry
	locks map[string]bool
}

func readLedger(path string) *ledger {
	l := &ledger{path: path, runs: make(map[int64]entry), locks: make(map[string]bool)}
	data, err := os.ReadFile(path)
	if err != nil {
		return l
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		var e entry
		if json.Unmarshal(lines.Bytes(), &e) == nil { // a line cut short says nothing
			l.take(e)
		}
	}
	return l
}

// add appends an entry.
func (l *ledger) add(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(append([]byte("\n"), append(line, '\n')...)); err != nil { // the first newline ends a line cut short
		return err
	}
	l.take(e)
	return nil
}

func (l *ledger) take(e entry) {
	if e.Run != 0 {
		l.runs[e.Run] = e
	}
	if e.Lock != "" {
		l.locks[e.Lock] = true
	}
}

// register says that claims with this lock are a dispatcher's. It comes before the first one, so that a claim whose dispatcher died
// before it wrote down the run is known for what it is.
func (l *ledger) register(lock string) error {
	if l.locks[lock] {
		return nil
	}
	return l.add(entry{Lock: lock})
}

// over are the entries whose run isn't open any more.
func (l *ledger) over(open map[int64]bool) (list []entry) {
	for run, e := range l.runs {
		if !open[run] {
			list = append(list, e)
		}
	}
	return list
}

// drop writes the ledger without these entries, and with these locks only.
func (l *ledger) drop(list []entry, locks map[string]bool) error {
	for _, e := range list {
		delete(l.runs, e.Run)
	}
	rest := slices.Collect(maps.Values(l.runs))
	for lock := range l.locks {
		if locks[lock] {
			rest = append(rest, entry{Lock: lock})
		} else {
			delete(l.locks, lock)
		}
	}
	var b bytes.Buffer
	for _, e := range rest {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	return writeWhole(l.path, b.Bytes())
}

// instance names the boot and the init that the workers of this process live and die with. Another one in an entry means that the
// worker went down with its container or machine.
func instance() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	id := strings.TrimSpace(string(boot))
	if st, err := procstat.Read(1); err == nil {
		id += "/" + strconv.FormatUint(st.Start, 10)
	}
	return id
}
