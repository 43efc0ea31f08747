package profiles

import "maps"

// Handover is the state of [Intents] that PID 1 keeps when it re-executes itself: the last order for each profile.
type Handover map[string]intent

// HandOver returns a copy of all orders, for the program that PID 1 executes next. It doesn't block.
func (in *Intents) HandOver() Handover {
	in.mu.Lock()
	defer in.mu.Unlock()
	return maps.Clone(in.orders)
}

// TakeOver adds the orders that the previous program of PID 1 handed over with HandOver.
func (in *Intents) TakeOver(h Handover) {
	in.mu.Lock()
	defer in.mu.Unlock()
	maps.Copy(in.orders, h)
}
