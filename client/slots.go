package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Slot is a service as the tools of s6 see it: one directory of the scan directory. Its times are exact; [Service] rounds them.
type Slot struct {
	Name       string    `json:"name"`        // of the service behind it: gateway-coder, dashboard, foo, foo/log
	Dir        string    `json:"dir"`         // its service directory, an absolute path
	Up         bool      `json:"up"`          // its main process is alive; false while only a finish program runs
	WantUp     bool      `json:"want_up"`     //
	NormallyUp bool      `json:"normally_up"` // it starts by itself: its directory has no down file
	Ready      bool      `json:"ready"`       // its main process is up and has reported readiness
	Paused     bool      `json:"paused"`      // stopped by a command; false if another process sent the signal
	Finishing  bool      `json:"finishing"`   // its main process has ended, and its finish program or a leftover process still runs
	Started    bool      `json:"started"`     // its run program was started at least once
	Notifies   bool      `json:"notifies"`    // it reports its readiness
	Permanent  bool      `json:"permanent"`   // it will not start again by itself: its finish program said so, or it is parked or failed
	Run        uint64    `json:"run"`         // number of its current or last run, 0 before the first
	PID        int       `json:"pid"`         // 0 when it is not up
	PGID       int       `json:"pgid"`        // 0 when it is not up
	ExitCode   int       `json:"exitcode"`    // of its last run, -1 without a run or if a signal ended it
	Signal     int       `json:"signal"`      // signal that ended its last run, 0 when none did
	Since      time.Time `json:"since"`       // of the last change between up and down
	ReadySince time.Time `json:"ready_since"` // when it became ready; while it is down, when its last process ended; else zero
}

// SlotsReply is the answer to a request for slots.
type SlotsReply struct {
	Slots []Slot `json:"slots"`
}

// SlotControl is the body of a command to a slot.
type SlotControl struct {
	Dir   string `json:"dir"`
	Flags string `json:"flags"` // the letters of s6-svc, without the dash
}

// SlotScan is the body of a command to the scanner.
type SlotScan struct {
	Flags string `json:"flags"` // the letters of s6-svscanctl, without the dash
}

// Slots returns all slots sorted by name. The list is empty if hinit does not answer as s6.
func (c *Client) Slots(ctx context.Context) ([]Slot, error) {
	var r SlotsReply
	err := c.ask(ctx, question{doing: "list the slots", method: http.MethodGet, path: "/v1/slots"}, &r)
	return r.Slots, err
}

// Slot returns the slot of the service directory dir, an absolute path; a logger's ends in /log. The error is ErrUnknown if hinit
// does not supervise it.
func (c *Client) Slot(ctx context.Context, dir string) (Slot, error) {
	q := question{doing: fmt.Sprintf("get the state of %q", dir), method: http.MethodGet, path: "/v1/slots", query: url.Values{"dir": {dir}}}
	return c.oneSlot(ctx, q)
}

// SlotControl gives a slot the commands of s6-svc in flags ("du"), in order. It returns when hinit has accepted them. For an unknown
// letter the error is ErrBadRequest, and hinit carries out none of them.
func (c *Client) SlotControl(ctx context.Context, dir, flags string) error {
	q := question{doing: fmt.Sprintf("control %q", dir), method: http.MethodPost, path: "/v1/slots/control", body: SlotControl{dir, flags}}
	return c.ask(ctx, q, nil)
}

// SlotWait returns when the slot is in the state until, at once if it already is. The states have the names of the options of
// s6-svwait. u is up, U is up and ready. d is down, D is down and all its processes ended. r is a new run, R is a new run that is
// ready. The number of an old run may follow d, D, r and R ("r12", see [Slot.Run]). The wait then also ends if the slot left that
// run before this call.
//
// The error has the kind permanent when the slot will not reach the state by itself. Only ctx limits the wait.
func (c *Client) SlotWait(ctx context.Context, dir, until string) (Slot, error) {
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
	q := question{doing: "scan the service directories", method: http.MethodPost, path: "/v1/slots/scan", body: SlotScan{flags}}
	return c.ask(ctx, q, nil)
}

func (c *Client) oneSlot(ctx context.Context, q question) (Slot, error) {
	var r SlotsReply
	if err := c.ask(ctx, q, &r); err != nil {
		return Slot{}, err
	}
	if len(r.Slots) != 1 {
		return Slot{}, explain(ctx, q, &Error{Kind: KindInternal, Message: fmt.Sprintf("hinit answers with %d slots", len(r.Slots))})
	}
	return r.Slots[0], nil
}
