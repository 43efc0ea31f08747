package dial

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"hinit/client"
)

// Slots returns all slots sorted by name. The list is empty if hinit does not answer as s6.
func (c *Client) Slots(ctx context.Context) ([]client.Slot, error) {
	r, err := ask[client.SlotsReply](ctx, c, question{doing: "list the slots", method: http.MethodGet, path: "/v1/slots"})
	return r.Slots, err
}

// Slot returns the slot of the service directory dir, an absolute path; a logger's ends in /log. The error is ErrUnknown if hinit
// does not supervise it.
func (c *Client) Slot(ctx context.Context, dir string) (client.Slot, error) {
	q := question{doing: fmt.Sprintf("get the state of %q", dir), method: http.MethodGet, path: "/v1/slots", query: url.Values{"dir": {dir}}}
	return c.oneSlot(ctx, q)
}

// SlotControl gives a slot the commands of s6-svc in flags ("du"), in order. It returns when hinit has accepted them. For an unknown
// letter the error is ErrBadRequest, and hinit carries out none of them.
func (c *Client) SlotControl(ctx context.Context, dir, flags string) error {
	q := question{doing: fmt.Sprintf("control %q", dir), method: http.MethodPost, path: "/v1/slots/control", body: client.SlotControl{Dir: dir, Flags: flags}}
	return c.tell(ctx, q)
}

// SlotWait returns when the slot is in the state until, at once if it already is. The states have the names of the options of
// s6-svwait. u is up, U is up and ready. d is down, D is down and all its processes ended. r is a new run, R is a new run that is
// ready. The number of an old run may follow d, D, r and R ("r12", see [Slot.Run]). The wait then also ends if the slot left that
// run before this call.
//
// The error has the kind permanent when the slot will not reach the state by itself. Only ctx limits the wait.
func (c *Client) SlotWait(ctx context.Context, dir, until string) (client.Slot, error) {
	q := question{
		doing: fmt.Sprintf("wait for %q", dir), method: http.MethodGet, path: "/v1/slots/wait",
		query: url.Values{"dir": {dir}, "until": {until}}, limit: slotWaitTime,
	}
	return c.oneSlot(ctx, q)
}

// slotWaitTime is so long that it is no limit in practice.
const slotWaitTime = 100 * 365 * 24 * time.Hour

// SlotScan gives the scanner the commands of s6-svscanctl in flags ("an"), in order. When it returns, a scan is complete: hinit
// supervises the new directories and has told the services of removed ones to end.
func (c *Client) SlotScan(ctx context.Context, flags string) error {
	q := question{doing: "scan the service directories", method: http.MethodPost, path: "/v1/slots/scan", body: client.SlotScan{Flags: flags}}
	return c.tell(ctx, q)
}

func (c *Client) oneSlot(ctx context.Context, q question) (client.Slot, error) {
	r, err := ask[client.SlotsReply](ctx, c, q)
	if err != nil {
		return client.Slot{}, err
	}
	if len(r.Slots) != 1 {
		return client.Slot{}, explain(ctx, q, &client.Error{Kind: client.KindInternal, Message: fmt.Sprintf("hinit answers with %d slots", len(r.Slots))})
	}
	return r.Slots[0], nil
}
