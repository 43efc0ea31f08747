package main

import "fmt"

// explain says what stands between a measure and its target, with the floor of the same run. Where each millisecond and each page
// goes is in docs/explanation/performance.md.
func (b *bench) explain(measure string) string {
	of := func(measure, at, peer string) string {
		v, ok := b.figures.median(measure, at, peer)
		if !ok {
			return "an unmeasured number of"
		}
		return number(v)
	}
	switch measure {
	case "M1":
		return fmt.Sprintf("one process instead of many, so it grows slowly, but what the Go runtime needs comes first: %s MB with one service, "+
			"of which %s MB are written to; the rest are pages of the program file, which the kernel can drop.",
			of("M1", "1", hinitName), of("M1 private", "1", hinitName))
	case "M2":
		return fmt.Sprintf("before the first service there is a boot (control socket, owners, directories, profiles), which with one service is most of "+
			"the %s ms where the bare loop takes %s; each service then costs a look at its home, and two pipes and who reads them, with which alone the "+
			"loop takes 1.1 times as long with 100 services and 1.25 with 500: every fork copies the table of descriptors, which is also why the boot grows a "+
			"little faster than the number of services. See [where time goes](../explanation/performance.md).",
			of("M2", "1", hinitName), of("M2", "1", loopName))
	case "M3":
		return "hinit looks for what the dead process has left behind before it starts the next one, and makes it new pipes."
	case "M5":
		return "explained in [the way of a line](../explanation/log-path.md)."
	case "M6":
		return fmt.Sprintf("each command is a program in Go: one that does nothing takes %s ms here where /bin/true takes %s. The question takes half a "+
			"millisecond; of the table of all, most is three system calls a service for its memory. A start or stop has the command's %s ms in it and the "+
			"record of the intent, one of whose two syncs comes before it and one beside it.",
			of("M6", "status", emptyName), of("M6", "status", trueName), of("M6", "status", hinitName))
	case "M12":
		return fmt.Sprintf("the shim, which adds %s ms to what it becomes, then hinit, and its questions; a start is answered when desired_state is synced with its "+
			"directory, which is as long as the disk takes.", of("M8", "added", hinitName))
	case "M7":
		return fmt.Sprintf("the floor of a loop in C is %s µs; the Go runtime adds the way of a signal, or of a return from a wait, to a goroutine.",
			of("M7", "µs", "tini"))
	case "M8":
		return fmt.Sprintf("an empty program in Go, which becomes nothing, adds %s ms by itself, and one that drops root and executes /bin/true, and looks "+
			"nothing up, %s ms: the Go runtime starts threads, sets every signal handler and maps its heap before main, and the kernel takes all of that down "+
			"again. A program in C stays below the target, one in Go that becomes another does not.",
			of("M8", "added", emptyName), of("M8", "added", "naive Go"))
	case "M9":
		return "hinit looks at the one new directory as the agent's user, gives it its owner, and records the intent; a mkdir besides waits for the file system. Both " +
			"compete with the sync of the record for the same cores and disk."
	case "M10":
		return fmt.Sprintf("the bare loop, which only passes the signal on and waits, takes %s ms with 100 services; hinit reads their logs to the end. "+
			"See [where time goes](../explanation/performance.md).", of("M10", "100", loopName))
	case "M11":
		return "the boot of hinit and the end of its logs; an engine that is busy varies by more than that."
	}
	return "see `docs/explanation/performance.md`."
}
