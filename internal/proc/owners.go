package proc

// Roots describes the main processes of all services that a single hinit supervises.
type Roots struct {
	Init  int                        // PID of hinit itself; 0 if unknown
	Mains map[int]string             // names of services by the PID of the main process
	Mark  func(pid int) (Mark, bool) // reads the mark of a process; nil if marks can't be read
}

// Owners returns, for each process in all, the main process of its service, 0 for none. It uses the same rules by which hinit
// stops a service: the ancestors of the process, its session or process group, which an orphan keeps, and its mark. The mark
// counts only for children of this hinit, because another hinit uses the same marks.
func (r Roots) Owners(all map[int]stat) map[int]int {
	of, parent := make(map[int]int, len(all)), make(map[int]int, len(all))
	var marks map[Mark]int // read only if an orphan exists
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
			marks = r.mainsByMark()
		}
		mark, ok := r.Mark(pid)
		nearest := uint64(outerStep) // a hinit inside a service lowers the mark by less than this
		for m, main := range marks {
			if ok && mark.Limit != 0 && mark.Counts(m.User) && mark.Limit <= m.Limit && m.Limit-mark.Limit < nearest {
				of[pid], nearest = main, m.Limit-mark.Limit
			}
		}
	}
	for pid := range all {
		runOfAncestor(pid, r.Init, of, parent)
	}
	return of
}

// mainsByMark returns the main processes by their marks. A limit far below the first mark is not a mark: it really limits
// real-time scheduling.
func (r Roots) mainsByMark() map[Mark]int {
	marks := make(map[Mark]int, len(r.Mains))
	for main := range r.Mains {
		if mark, ok := r.Mark(main); ok && mark.Limit > firstMark>>1 {
			marks[mark] = main
		}
	}
	return marks
}
