package placement

// Object holds the fields of an AgentProfile that decide about the next step of a host. They come from one fresh read.
type Object struct {
	UID        string
	Owner      string // host that has the data; "" for none
	Assignment int64  // number that grows with each change of Owner
	Installed  int64  // assignment for which the owner last confirmed that it has the data
	Receipt    string // nonce of the data that the owner got from another host; "" if it got none
	To         string // host to which the profile moves; "" without a move
	Offer      string // nonce of the owner's offer for the move
	Received   string // nonce of the offer whose data the new host has stored
	Missing    bool   // the owner has reported that the data is not on its volume
	Failed     bool   // the move has failed so often that the owner ends it
	Wanted     bool   // the gateway should run
	Deleting   bool
}

// Local is the state of a profile on one host. hinit sees only live data, and can't start a gateway from data that was set aside
// or received.
type Local struct {
	Live     bool   // hinit can start the gateway from the data
	Aside    int64  // assignment under which data was set aside to be given away; 0: none
	Incoming string // nonce of data that was received in full from another host; "" for none
	Up       bool   // a process of the gateway may be alive
	Offered  string // nonce of the offer that this process has made since the gateway ended; "": none
	// Equal to Offered if the data was sent in full with the checksum that the receiver has reported; "" otherwise.
	Sent    string
	Stalled bool // nothing was sent for so long that the owner ends the move
}

// Live returns the field Live of [Local] for the object with the UID uid, if the volume has a home of that name. o is the
// object that the API server has under the name, or nil. aside is [Local.Aside]. recorded reports whether the record on the
// volume names the object. Live calls it only if the API server can't tell, because agents may write records.
func Live(me, uid string, o *Object, aside int64, recorded func() bool) bool {
	switch {
	case o == nil || o.Owner != me:
		return recorded()
	case o.UID == uid && o.Assignment == aside: // the data was set aside, so another process has made this home
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
	Wait         Step = iota // nothing to do until another host or the controller acts
	Run                      // start the gateway, or keep it running
	Halt                     // stop the gateway
	Create                   // create the profile without data
	Report                   // write into the status that the data is here
	Missing                  // write into the status that the data is missing; start nothing
	Offer                    // write into the status how the other host can fetch the data
	SetAside                 // move the data out of hinit's reach
	TakeBack                 // move the data back into hinit's reach
	Give                     // write into the status that the other host is the owner
	CallOff                  // end the move, so that the gateway runs here again
	Fetch                    // fetch the data from the owner
	Received                 // write into the status that the data was stored
	Install                  // make the received data live
	Retire                   // stop the gateway and keep its live data where no object refers to it
	Drop                     // delete set-aside data that the next owner has confirmed; keep other set-aside data where no object refers to it
	DropIncoming             // delete the received data
	Finish                   // stop the gateway, keep or delete the data, and remove the finalizer of the object
)

var stepNames = [...]string{
	"Wait", "Run", "Halt", "Create", "Report", "Missing", "Offer", "SetAside", "TakeBack", "Give", "CallOff", "Fetch", "Received", "Install", "Retire", "Drop",
	"DropIncoming", "Finish",
}

// String implements [fmt.Stringer].
func (s Step) String() string { return stepNames[s] }

// Next returns the next step of the host me for one profile. o is nil if no object has the UID of the data. The rules are in
// the table of the package comment.
func Next(me string, o *Object, l Local) Step {
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
	case l.Live && o.Missing: // the volume is back, so report the data
		return Report
	case o.To == "":
		return nextForOwned(o, l)
	}
	return giveAway(o, l)
}

// nextForOwned returns the next step for a profile that this host owns and that is not moving.
func nextForOwned(o *Object, l Local) Step {
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

// giveAway returns the next step for a profile that moves from this host to another.
func giveAway(o *Object, l Local) Step {
	complete := o.Received != "" && o.Received == o.Offer && l.Sent == o.Offer
	switch {
	case (o.Failed || l.Stalled && !complete) && (l.Live || l.Aside == o.Assignment):
		return CallOff
	case l.Live && l.Up:
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
func nextForOther(me string, o *Object, l Local) Step {
	switch {
	case l.Live:
		return Retire
	case l.Aside != 0 && o.Installed == o.Assignment && !o.Missing && o.Assignment > l.Aside:
		return Drop
	case o.To == me && o.Offer != "" && l.Incoming != o.Offer:
		return Fetch
	case o.To == me && o.Offer != "" && o.Received != o.Offer:
		return Received
	case o.To != me && l.Incoming != "":
		return DropIncoming
	}
	return Wait
}
