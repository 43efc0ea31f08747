package web

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/samber/lo"

	"hinit/client"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/procusage"
)

const (
	measureInterval = 5 * time.Second
	maxMeasureAge   = 2 * pointInterval // maximum age of a measurement; the average since then would not show the current usage
	maxProcesses    = 50                // maximum number of processes on the page of a service
)

// usageMeter measures the usage of services while the page has readers, at most every measureInterval. Without readers it
// measures once in each period of the graphs. It keeps the values of the last hour.
type usageMeter struct {
	// returns the path of a /proc that shows the processes; may be nil
	proc func(client.Init) string

	mu          sync.Mutex
	at          time.Time
	periodStart time.Time // start of the current period of the graphs
	last        procusage.Table
	roots       proc.ServiceRoots
	newest      usageSample
	histories   map[string]*usageHistory
}

// usageSample is the memory and the processor time of services at one moment, by service.
type usageSample struct {
	byName   map[string]procusage.Usage
	cpuKnown bool // whether the processor times are known
	lines    map[string][2]string
}

// measure returns the usage of the services in st, or an empty result if their processes are not visible.
func (m *usageMeter) measure(st *client.Status) usageSample {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.proc == nil || now.Sub(m.at) < measureInterval {
		return m.newest
	}
	passed := now.Sub(m.at)
	m.at = now
	var all procusage.Table
	root := m.proc(st.Init)
	if root != "" {
		all, _ = procusage.ReadProcesses(root)
	}
	if all == nil {
		m.last, m.newest = nil, usageSample{}
		return m.newest
	}
	before := lo.Ternary(passed > maxMeasureAge, nil, m.last)
	m.roots = procusage.ServiceRootsOf(*st, root)
	m.newest = usageSample{byName: all.UsageByService(m.roots, before, passed), cpuKnown: before != nil}
	m.last = all
	if m.newest.cpuKnown {
		m.addToHistories(now, passed)
	} else {
		m.periodStart, m.histories = now, nil
	}
	return m.newest
}

// addToHistories adds the newest measurement to the history of each service. It drops the histories of removed services. passed
// is the time since the previous measurement.
func (m *usageMeter) addToHistories(now time.Time, passed time.Duration) {
	stretch := now.Sub(m.periodStart)
	over := stretch >= pointInterval
	pasts := make(map[string]*usageHistory, len(m.newest.byName))
	m.newest.lines = make(map[string][2]string, len(m.newest.byName))
	for name, u := range m.newest.byName {
		p := cmp.Or(m.histories[name], new(usageHistory))
		p.add(u, passed, over, stretch)
		pasts[name], m.newest.lines[name] = p, p.lines
	}
	m.histories = pasts
	if over {
		m.periodStart = now
	}
}

// processes returns the processes of a service at the last measurement, largest first.
func (m *usageMeter) processes(name string) (list []procstat.Stat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list = lo.FilterMapToSlice(m.roots.Owners(m.last), func(pid, main int) (procstat.Stat, bool) {
		return m.last[pid], main != 0 && m.roots.Mains[main] == name
	})
	slices.SortFunc(list, func(a, b procstat.Stat) int {
		return cmp.Or(cmp.Compare(b.Memory, a.Memory), cmp.Compare(a.PID, b.PID))
	})
	return list[:min(len(list), maxProcesses)]
}

// processStateText returns a word for the state of a process. letter is the state in proc_pid_stat(5).
func processStateText(letter byte) string {
	return cmp.Or(map[byte]string{'R': "running", 'S': "sleeping", 'D': "waiting for a disk", 'T': "stopped", 't': "traced", 'Z': "zombie", 'I': "idle"}[letter], string(letter))
}

// usageView is the usage of a service on the page. The values are rounded, so that only a notable change is sent to the
// readers. "" means unknown.
type usageView struct {
	CPU, Memory         string
	CPULine, MemoryLine string
	Processes           int
	Hundredths          int // processor time in hundredths of a processor, for sorting
	Megabytes           int
}

func (m usageSample) view(name string) (v usageView) {
	u, is := m.byName[name]
	if !is {
		return v
	}
	v.Processes, v.Hundredths, v.Megabytes = u.Processes, int(u.CPU*100+0.5), int(u.Memory/1e6)
	v.Memory = megabytes(u.Memory)
	if m.cpuKnown {
		v.CPU = fmt.Sprintf("%d %%", v.Hundredths)
	}
	v.CPULine, v.MemoryLine = m.lines[name][0], m.lines[name][1]
	return v
}

func megabytes(bytes uint64) string {
	if bytes < 10e6 {
		return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
	}
	if bytes < 10e9 {
		return fmt.Sprintf("%d MB", bytes/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(bytes)/1e9)
}

const (
	graphPoints   = 24 // number of values in a row's graph
	pointInterval = time.Hour / graphPoints
	graphHeights  = 9
	minCPU        = 0.05
)

// usageHistory is the usage of a service in the last hour: one value for each period, at most [graphPoints], oldest first.
type usageHistory struct {
	cpu, memory []float32
	periodCPU   float64 // processor time in the current period so far
	maxMemory   uint64
	lines       [2]string
}

// add adds a measurement. passed is the time since the previous measurement. over means that the measurement is the last one of
// the current period, which has the length stretch.
func (p *usageHistory) add(u procusage.Usage, passed time.Duration, over bool, stretch time.Duration) {
	p.periodCPU += u.CPU * passed.Seconds()
	p.maxMemory = max(p.maxMemory, u.Memory)
	if !over {
		return
	}
	p.cpu = appendPoint(p.cpu, float32(p.periodCPU/stretch.Seconds()))
	p.memory = appendPoint(p.memory, float32(p.maxMemory))
	p.periodCPU, p.maxMemory = 0, 0
	p.lines = [2]string{sparklinePath(p.cpu, minCPU), sparklinePath(p.memory, 1)}
}

func appendPoint(values []float32, v float32) []float32 {
	return append(values[max(0, len(values)-graphPoints+1):], v)
}

// sparklinePath returns an SVG path that draws values. The path is [graphPoints]-1 wide and [graphHeights] high; the style
// sheet enlarges it. The full height stands for the largest value, or for least if that is larger.
func sparklinePath(values []float32, least float32) string {
	if len(values) < 2 {
		return ""
	}
	for _, v := range values {
		least = max(least, v)
	}
	height := func(v float32) int { return int(v/least*graphHeights + 0.5) }
	last := height(values[0])
	out := fmt.Appendf(nil, "M%d %dl", graphPoints-len(values), graphHeights-last)
	flat := 0
	for i, v := range values[1:] {
		h := height(v)
		if h == last && i < len(values)-2 {
			flat++
			continue
		}
		for _, step := range [][2]int{{flat, 0}, {1, last - h}} {
			if step[0] == 0 {
				continue
			}
			if out[len(out)-1] != 'l' {
				out = append(out, ' ')
			}
			out = strconv.AppendInt(out, int64(step[0]), 10)
			if step[1] >= 0 { // before a negative number, the minus sign separates
				out = append(out, ' ')
			}
			out = strconv.AppendInt(out, int64(step[1]), 10)
		}
		last, flat = h, 0
	}
	return string(out)
}
