package kanban

import (
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
// board, whose columns belong to all its writers. Host, volume and the worker's boot are its stamp: they tell later whether what it speaks
// of can be alive.
type entry struct {
	Run    int64  `json:"run,omitempty"`
	Task   string `json:"task,omitempty"`
	Host   string `json:"host,omitempty"`
	Volume string `json:"volume,omitempty"`
	Lock   string `json:"lock,omitempty"` // an entry of its own: this claimant makes claims
	Seen   bool   `json:"seen,omitempty"` // and is another program, whose claims may have no worker
	Worker
}

// ledger is the file of entries, one JSON object a line; the last entry of a run counts. The holder of the tick lock writes it.
// It needs no sync: it serves after the death of a dispatcher, and after a crash of the machine no worker is left.
type ledger struct {
	path  string
	runs  map[int64]entry
	locks map[string]entry // by claimant
}

func readLedger(path string) *ledger {
	l := &ledger{path: path, runs: make(map[int64]entry), locks: make(map[string]entry)}
	data, _ := readRegular(path) // the next entry replaces a file that can't be read
	for line := range bytes.Lines(data) {
		var e entry
		if json.Unmarshal(line, &e) == nil {
			l.take(e)
		}
	}
	return l
}

// add writes the ledger with one more entry.
func (l *ledger) add(e entry) error {
	l.take(e)
	return l.save()
}

func (l *ledger) take(e entry) {
	if e.Run != 0 {
		l.runs[e.Run] = e
	}
	if e.Lock != "" {
		l.locks[e.Lock] = e
	}
}

// drop writes the ledger without these entries, and with these claimants only.
func (l *ledger) drop(list []entry, locks map[string]bool) error {
	for _, e := range list {
		delete(l.runs, e.Run)
	}
	maps.DeleteFunc(l.locks, func(lock string, _ entry) bool { return !locks[lock] })
	return l.save()
}

func (l *ledger) save() error {
	var b bytes.Buffer
	for _, e := range slices.AppendSeq(slices.Collect(maps.Values(l.runs)), maps.Values(l.locks)) {
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
