package profiles

import "maps"

// Handover is the state that Intents pass on when PID 1 executes itself again: the last order for each profile.
type Handover map[string]intent

// HandOver returns the state that the new program needs. It doesn't block.
func (in *Intents) HandOver() Handover {
	in.mu.Lock()
	defer in.mu.Unlock()
	return maps.Clone(in.orders)
}

// TakeOver adds the orders from the old program.
func (in *Intents) TakeOver(h Handover) {
	in.mu.Lock()
	defer in.mu.Unlock()
	maps.Copy(in.orders, h)
}
