package profiles

import (
	"encoding/json"
	"fmt"
	"maps"

	"hinit/internal/handover"
)

// Export returns what was asked of each profile, for a successor in another image of this process. It doesn't block.
func (in *Intents) Export(c *handover.Codec) (json.RawMessage, error) {
	in.mu.Lock()
	asked := maps.Clone(in.asked)
	in.mu.Unlock()
	return c.Encode(&asked)
}

// Import makes new Intents the successor of those that were exported.
func (in *Intents) Import(c *handover.Codec, data json.RawMessage) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := c.Decode(data, &in.asked); err != nil {
		return fmt.Errorf("cannot take over what was asked of the profiles: %w", err)
	}
	if in.asked == nil {
		in.asked = make(map[string]intent)
	}
	return nil
}
