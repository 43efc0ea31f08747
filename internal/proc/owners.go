package proc

// Roots say where the processes of the services of one hinit begin.
type Roots struct {
	Init  int                        // the process of hinit itself; 0 when it is not known
	Mains map[int]string             // the main processes with the names of their services
	Mark  func(pid int) (Mark, bool) // the mark of a process; nil: none is known
}

// Owners finds the main process to which each process belongs, 0 for none, as hinit does when it stops a service. It uses its
// ancestors, its session or group, which an orphan keeps, or its mark, if that counts. The mark of a process that does not
// descend from this hinit doesn't count: another hinit uses the same marks.
func (r Roots) Owners(all map[int]stat) map[int]int {
	of, parent := make(map[int]int, len(all)), make(map[int]int, len(all))
	var marks map[Mark]int // read when the first orphan needs them
	for pid, p := range all {
		parent[pid] = p.Parent
		for _, main := range [...]int{p.Group, p.Session, pid} {
			if _, is := r.Mains[main]; is {
				of[pid] = main
			}
		}
		if p.Parent != r.Init || of[pid] != 0 || r.Mark == nil || r.Init == 0 {
			continue
		}
		if marks == nil {
			marks = r.marks()
		}
		mark, ok := r.Mark(pid)
		nearest := uint64(outerStep) // a hinit inside a service lowers the mark a little further for what it runs
		for m, main := range marks {
			if ok && mark.Limit != 0 && mark.Counts(m.User) && mark.Limit <= m.Limit && m.Limit-mark.Limit < nearest {
				of[pid], nearest = main, m.Limit-mark.Limit
			}
		}
	}
	for pid := range all {
		ancestry(pid, r.Init, of, parent)
	}
	return of
}

// marks returns the main processes by their marks. hinit's own limit is the mark of the newest run. A smaller limit is one of somebody who
// limits real-time scheduling in earnest.
func (r Roots) marks() map[Mark]int {
	marks := make(map[Mark]int, len(r.Mains))
	for main := range r.Mains {
		if mark, ok := r.Mark(main); ok && mark.Limit > firstMark>>1 {
			marks[mark] = main
		}
	}
	return marks
}
