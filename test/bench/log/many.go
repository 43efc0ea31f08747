package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// manyServicesResult is the result for a container with manyServicesResult services.
type manyServicesResult struct {
	Services int     `json:"services"`
	Flood    string  `json:"flood"` // Behaviour of the flooding service.
	EmptyKB  float64 `json:"empty_kb"`
	IdleKB   float64 `json:"idle_kb"`
	QuietP50 float64 `json:"quiet_p50_ms"`
	QuietP99 float64 `json:"quiet_p99_ms"`
	FloodP50 float64 `json:"flood_p50_ms"`
	FloodP99 float64 `json:"flood_p99_ms"`
	FloodMax float64 `json:"flood_max_ms"`
	Lines    int     `json:"lines"` // Number of lines whose delay was measured during the flood.
}

// probeTime is how long the delay is measured without a flood, and then again with one.
const probeTime = 5 * time.Second

// probeEvery is the interval of each service's lines during that time.
const probeEvery = time.Second

func (b *bench) measureMany() ([]manyServicesResult, error) {
	empty, err := b.manyServices(0, "")
	if err != nil {
		return nil, err
	}
	var all []manyServicesResult
	for _, kind := range b.kinds {
		m, err := b.manyServices(b.services, kind)
		if err != nil {
			return nil, err
		}
		m.EmptyKB = empty.IdleKB
		all = append(all, m)
		fmt.Printf("\n%d logged services, one of which floods with %s\n", m.Services, kind)
		fmt.Printf("  memory of PID 1: %.0f KB without services, %.0f KB with all of them idle: %.1f KB each\n",
			m.EmptyKB, m.IdleKB, (m.IdleKB-m.EmptyKB)/float64(m.Services))
		fmt.Printf("  from write to file: quiet p50 %.2f ms, p99 %.2f ms; flooded p50 %.2f ms, p99 %.2f ms, longest %.2f ms (%d lines)\n",
			m.QuietP50, m.QuietP99, m.FloodP50, m.FloodP99, m.FloodMax, m.Lines)
	}
	return all, nil
}

func (b *bench) manyServices(n int, kind string) (m manyServicesResult, err error) {
	m.Services, m.Flood = n, kind
	r, err := b.newRun(kind, true)
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(r.dir)
	home, start := filepath.Join(r.dir, "home"), filepath.Join(r.dir, "start")
	var services strings.Builder
	services.WriteString("  none: {command: [/bin/true], enabled: false}\n")
	const once = "restart: {initial: 1h, max: 1h}"
	files := make([]string, max(n-1, 0))
	for i := range files {
		name := fmt.Sprintf("probe%03d", i)
		files[i] = filepath.Join(home, "logs", "gateways", name, "current")
		fmt.Fprintf(&services, "  %s: {command: [%s, %s], env: {%s: probe, GOMAXPROCS: \"1\"}, %s}\n", name, b.self, start, roleVar, once)
	}
	if n > 0 {
		fmt.Fprintf(&services, "  flood: {command: [%s, %s, \"1000000000\", %q], env: {%s: write}, %s}\n", b.self, r.pipe, kind, roleVar, once)
	}
	if err := r.container(home, "raw", services.String()); err != nil {
		return m, err
	}
	defer func() {
		var s sample
		if e := r.end(&s); err == nil {
			err = e
		}
	}()
	written := func(name string) bool { st, err := os.Stat(name); return err == nil && st.Size() > 0 }
	if err := waitFor(func() bool { return !slices.ContainsFunc(files, func(f string) bool { return !written(f) }) }); err != nil {
		return m, fmt.Errorf("%w: a first line of every service", err)
	}
	if m.IdleKB, err = settledMemory(r.cmd.Process.Pid); err != nil || n == 0 {
		return m, err
	}
	if err := os.WriteFile(start, nil, 0o644); err != nil {
		return m, err
	}
	var fifo *os.File
	defer func() { _ = fifo.Close() }()
	return m, m.watch(files, func() (err error) {
		fifo, err = openWriter(r.pipe)
		return err
	})
}

func waitFor(cond func() bool) error {
	for end := time.Now().Add(patience); !cond(); <-time.After(50 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("never came")
		}
	}
	return nil
}

// settledMemory returns the private memory of a process in kB, once it has not grown for two
// seconds (smaps_rollup).
func settledMemory(pid int) (float64, error) {
	least, since := 0.0, time.Now()
	for time.Since(since) < 2*time.Second {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		kb := 0.0
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 3 && strings.HasPrefix(f[0], "Private_") {
				n, err := strconv.Atoi(f[1])
				if err != nil {
					return 0, err
				}
				kb += float64(n)
			}
		}
		if kb != least {
			least, since = kb, time.Now()
		}
		<-time.After(100 * time.Millisecond)
	}
	return least, nil
}

// watch measures the delay of log lines by inotify and the time in each line. It takes twice the
// probe time, and calls flood halfway.
func (m *manyServicesResult) watch(files []string, flood func() error) error {
	events, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(events)
	watched := make(map[int32]*os.File)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		wd, err := unix.InotifyAddWatch(events, name, unix.IN_MODIFY)
		if err != nil {
			return err
		}
		watched[int32(wd)] = f
	}
	var ways [2][]float64
	buf := make([]byte, 64<<10)
	begin := time.Now()
	for flooded := 0; ; {
		passed := time.Since(begin)
		if flooded == 0 && passed > probeTime {
			flooded = 1
			if err := flood(); err != nil {
				return err
			}
		}
		if passed > 2*probeTime {
			break
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(events), Events: unix.POLLIN}}, 100); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		n, err := unix.Read(events, buf)
		now := time.Now()
		if err != nil {
			continue
		}
		for at := 0; at < n; at += unix.SizeofInotifyEvent {
			f := watched[int32(binary.NativeEndian.Uint32(buf[at:]))]
			if wrote, ok := lastWritten(f); ok && wrote.After(begin) {
				ways[flooded] = append(ways[flooded], now.Sub(wrote).Seconds()*1000)
			}
		}
	}
	quiet, loud := ways[0], ways[1]
	if len(quiet) == 0 || len(loud) == 0 {
		return errors.New("no line has come")
	}
	slices.Sort(quiet)
	slices.Sort(loud)
	m.QuietP50, m.QuietP99 = quiet[len(quiet)/2], quiet[len(quiet)*99/100]
	m.FloodP50, m.FloodP99, m.FloodMax = loud[len(loud)/2], loud[len(loud)*99/100], loud[len(loud)-1]
	m.Lines = len(loud)
	return nil
}

// lastWritten parses the time in the last line of a probe's log.
func lastWritten(f *os.File) (time.Time, bool) {
	if f == nil {
		return time.Time{}, false
	}
	st, err := f.Stat()
	if err != nil {
		return time.Time{}, false
	}
	tail := make([]byte, 24)
	if _, err := f.ReadAt(tail, max(0, st.Size()-int64(len(tail)))); err != nil {
		return time.Time{}, false
	}
	fields := strings.Fields(string(tail))
	if len(fields) == 0 {
		return time.Time{}, false
	}
	ns, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
	return time.Unix(0, ns), err == nil
}

// probe is the service with the measured delay: it writes the time every probeEvery, from the
// creation of the file start on.
func probe(start string) error {
	if _, err := fmt.Println(0); err != nil {
		return err
	}
	if err := waitFor(func() bool { _, err := os.Stat(start); return err == nil }); err != nil {
		return err
	}
	<-time.After(rand.N(probeEvery))
	for range time.Tick(probeEvery) {
		if _, err := fmt.Println("written at", time.Now().UnixNano()); err != nil {
			return err
		}
	}
	return nil
}
