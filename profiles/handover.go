package profiles

import "maps"

// Handover is the state that Intents hand over to this process's next image: the orders for each profile.
type Handover map[string]intent

// HandOver returns the state that the next image needs. It doesn't block.
func (in *Intents) HandOver() Handover {
	in.mu.Lock()
	defer in.mu.Unlock()
	return maps.Clone(in.asked)
}

// TakeOver makes new Intents the successors of others.
func (in *Intents) TakeOver(h Handover) {
	in.mu.Lock()
	defer in.mu.Unlock()
	maps.Copy(in.asked, h)
}
