package container

import (
	"runtime/debug"
	"sync"
)

// bootGarbage is how much the heap may grow between two collections of the boot, in percent, where Go's default is 100. It
// also makes the first one come at four times the size.
const bootGarbage = 400

// collectLater makes the garbage collector wait longer until the function that it returns is called, when the boot is over:
// it would take turns with the starts of gateways, and what the boot leaves behind is given back once hinit rests. To turn it off
// would cost more: memory that is used again is cheaper than new memory.
func collectLater() (normal func()) {
	percent := debug.SetGCPercent(bootGarbage)
	if percent < 0 || percent > bootGarbage { // GOGC says so
		debug.SetGCPercent(percent)
	}
	return sync.OnceFunc(func() { debug.SetGCPercent(percent) })
}
