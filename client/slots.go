package client

import (
	"time"
)

// Slot is a service as the tools of s6 see it: one directory of the scan directory. Its times are exact; [Service] rounds them.
type Slot struct {
	Name       string    `json:"name"`        // name of its service: gateway-coder, dashboard, foo, foo/log
	Dir        string    `json:"dir"`         // its service directory, an absolute path
	Up         bool      `json:"up"`          // its main process is alive; false while only a finish program runs
	WantUp     bool      `json:"want_up"`     // its desired state is up
	NormallyUp bool      `json:"normally_up"` // it starts without an order: its directory has no down file
	Ready      bool      `json:"ready"`       // its main process is up and has reported readiness
	Paused     bool      `json:"paused"`      // a command has paused it; false if another process has sent the signal
	Finishing  bool      `json:"finishing"`   // its main process has ended, and its finish program or a leftover process still runs
	Started    bool      `json:"started"`     // its run program was started at least once
	Notifies   bool      `json:"notifies"`    // it reports its readiness
	Permanent  bool      `json:"permanent"`   // it will not start again by itself: its finish program said so, or it is parked or failed
	Run        uint64    `json:"run"`         // number of its current or last run, 0 before the first
	PID        int       `json:"pid"`         // 0 when it is not up
	PGID       int       `json:"pgid"`        // 0 when it is not up
	ExitCode   int       `json:"exitcode"`    // exit code of its last run, -1 without a run or if a signal ended it
	Signal     int       `json:"signal"`      // signal that ended its last run, 0 when none did
	Since      time.Time `json:"since"`       // time of the last change between up and down
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
