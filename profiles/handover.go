package profiles

import "maps"

// Handover is the state of Intents that re-execution hands over to the next program of PID 1: the orders for each profile.
type Handover map[string]intent

// HandOver returns the state that the next program needs. It doesn't block.
func (in *Intents) HandOver() Handover {
	in.mu.Lock()
	defer in.mu.Unlock()
	return maps.Clone(in.asked)
}

// TakeOver adds the orders that the old program handed over.
func (in *Intents) TakeOver(h Handover) {
	in.mu.Lock()
	defer in.mu.Unlock()
	maps.Copy(in.asked, h)
}
