package placement

// Object holds the fields of an AgentProfile that decide about the next step of a host. They come from one fresh read.
type Object struct {
	UID        string
	Owner      string // Host that has the data; "" for none.
	Assignment int64  // Number that grows with each change of Owner.
	Installed  int64  // Assignment for which the owner last confirmed the data.
	Receipt    string // Nonce of the data that the owner received from another host; "" for none.
	MoveTarget string // Host to which the profile moves; "" without a move.
	Offer      string // Nonce of the owner's offer for the move.
	Received   string // Nonce of the offer whose data the new host has stored.
	Missing    bool   // Whether the owner has reported that its volume lacks the data.
	Failed     bool   // Whether the move has failed so often that the owner ends it.
	Wanted     bool   // Whether the gateway should run.
	Deleting   bool
}

// LocalState is the state of a profile on one host. hinit sees only live data, and can't start a gateway from data that was set
// aside or received.
type LocalState struct {
	Live      bool   // Whether hinit can start the gateway from the data.
	Aside     int64  // Assignment of the data that was set aside for another host; 0: none.
	Incoming  string // Nonce of data that was received completely from another host; "" for none.
	GatewayUp bool   // Whether a process of the gateway may be alive.
	Offered   string // Nonce of the offer that this process made since the gateway ended; "": none.
	// Equal to Offered if the data was sent in full with the checksum that the receiver has reported; "" otherwise.
	Sent    string
	Stalled bool // Whether nothing was sent for so long that the owner ends the move.
}

// Live returns the field Live of [LocalState] for the object with the UID uid, if the volume has a home of that name. o is the
// object that the API server has under the name, or nil. aside is [LocalState.Aside]. recorded reports whether the record on the
// volume names the object. Live calls it only if the API server can't tell, because agents may write records.
func Live(me, uid string, o *Object, aside int64, recorded func() bool) bool {
	switch {
	case o == nil || o.Owner != me:
		return recorded()
	case o.UID == uid && o.Assignment == aside: // The data was set aside, so another process created this home.
		return false
	case o.Installed != o.Assignment || o.Missing:
		return recorded()
	}
	return o.UID == uid
}

// Step is the next action of a host for one profile.
type Step int

// The values of Step.
const (
	Wait         Step = iota // Nothing to do until another host or the controller acts.
	Run                      // Start the gateway, or keep it running.
	Halt                     // Stop the gateway.
	Create                   // Create the profile without data.
	Report                   // Report in the status that this host has the data.
	Missing                  // Report in the status that the data is missing, and start nothing.
	Offer                    // Write into the status how the other host can fetch the data.
	SetAside                 // Move the data to a place where hinit does not find it.
	TakeBack                 // Move the data back to hinit's directory.
	Give                     // Make the other host the owner, in the status.
	CallOff                  // End the move, so that the gateway runs on this host again.
	Fetch                    // Fetch the data from the owner.
	Received                 // Report in the status that the data is stored.
	Install                  // Make the received data live.
	Retire                   // Stop the gateway and retain its live data.
	Drop                     // Delete set-aside data that the next owner has confirmed, and retain other set-aside data.
	DropIncoming             // Delete the received data.
	Finish                   // Stop the gateway, retain or delete the data, and remove the object's finalizer.
)

var stepNames = [...]string{
	"Wait", "Run", "Halt", "Create", "Report", "Missing", "Offer", "SetAside", "TakeBack", "Give", "CallOff", "Fetch", "Received", "Install", "Retire", "Drop",
	"DropIncoming", "Finish",
}

// String implements [fmt.Stringer].
func (s Step) String() string { return stepNames[s] }

// Next returns the next step for one profile on the host called me. o is nil if no object has the UID of the data. The rules are
// in the table of the package comment.
func Next(me string, o *Object, l LocalState) Step {
	switch {
	case o == nil && l.Live:
		return Retire
	case o == nil && l.Aside != 0:
		return Drop
	case o == nil && l.Incoming != "":
		return DropIncoming
	case o == nil:
		return Wait
	case o.Owner != me:
		return nextForOther(me, o, l)
	case o.Deleting:
		return Finish
	// Received data is installed only before the owner confirms that it has the data. Later, only an agent can have made it.
	case o.Receipt != "" && l.Incoming == o.Receipt && o.Installed != o.Assignment:
		return Install
	case l.Live && o.Missing: // The volume is back, so report the data.
		return Report
	case o.MoveTarget == "":
		return nextForOwned(o, l)
	}
	return nextForMoving(o, l)
}

// nextForOwned returns the next step for a profile that this host owns and that is not moving.
func nextForOwned(o *Object, l LocalState) Step {
	switch {
	case l.Live && o.Installed != o.Assignment:
		return Report
	case l.Live && l.Aside != 0:
		return Drop
	case l.Live && o.Wanted:
		return Run
	case l.Live:
		return Halt
	case l.Aside == o.Assignment:
		return TakeBack
	case o.Installed == 0:
		return Create
	}
	return Missing
}

// nextForMoving returns the next step for a profile that moves from this host to another.
func nextForMoving(o *Object, l LocalState) Step {
	complete := o.Received != "" && o.Received == o.Offer && l.Sent == o.Offer
	switch {
	case (o.Failed || l.Stalled && !complete) && (l.Live || l.Aside == o.Assignment):
		return CallOff
	case l.Live && l.GatewayUp:
		return Halt
	case l.Live && complete:
		return SetAside
	case l.Live && o.Offer != "" && o.Received != o.Offer && l.Offered == o.Offer:
		return Wait
	case l.Live:
		return Offer
	case l.Aside == o.Assignment && complete:
		return Give
	case l.Aside == o.Assignment:
		return TakeBack
	}
	return Missing
}

// nextForOther returns the next step for a profile that another host owns.
func nextForOther(me string, o *Object, l LocalState) Step {
	switch {
	case l.Live:
		return Retire
	case l.Aside != 0 && o.Installed == o.Assignment && !o.Missing && o.Assignment > l.Aside:
		return Drop
	case o.MoveTarget == me && o.Offer != "" && l.Incoming != o.Offer:
		return Fetch
	case o.MoveTarget == me && o.Offer != "" && o.Received != o.Offer:
		return Received
	case o.MoveTarget != me && l.Incoming != "":
		return DropIncoming
	}
	return Wait
}
