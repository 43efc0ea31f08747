package main

import "fmt"

// explainGap explains why a figure misses its target, with the lower bound from the same run.
func (b *bench) explainGap(measure string) string {
	of := func(measure, at, peer string) string {
		v, ok := b.figures.median(measure, at, peer)
		if !ok {
			return "an unmeasured number of"
		}
		return formatNumber(v)
	}
	switch measure {
	case "M1":
		return "see [at rest](../explanation/performance.md#at-rest)."
	case "M2":
		return "hinit [boots](../explanation/performance.md#the-boot) before it starts the first service."
	case "M3":
		return "hinit first searches for processes that the dead process left behind."
	case "M5":
		return "see [the way of a line](../explanation/log-path.md)."
	case "M6":
		return fmt.Sprintf("an empty Go program takes %s ms. The status of all makes three system calls for each service. A start or stop records the intent.",
			of("M6", "status", emptyName))
	case "M12":
		return fmt.Sprintf("the shim adds %s ms. hinit answers a start when desired_state is on the disk.", of("M8", "added", hinitName))
	case "M7":
		return fmt.Sprintf("a loop in C takes %s µs; the Go runtime adds the way of a signal to a goroutine.", of("M7", "µs", "tini"))
	case "M8":
		return fmt.Sprintf("an empty Go program adds %s ms.", of("M8", "added", emptyName))
	case "M9":
		return "hinit looks at the new directory as the agent's user, sets its owner and records the intent."
	case "M10":
		return fmt.Sprintf("the bare loop takes %s ms with 100 services. hinit also reads their logs to the end.", of("M10", "100", loopName))
	case "M11":
		return "the boot of hinit and the end of its logs; an engine that is busy varies by more than that."
	}
	return "the search for [deaf gateways](../explanation/deaf-gateways.md) runs after a line of output and after a heartbeat."
}
