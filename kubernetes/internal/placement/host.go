package placement

import "slices"

// Object is what a host has to know of an AgentProfile, from one fresh read.
type Object struct {
	UID        string
	Owner      string // the host that has the data, "" for none
	Assignment int64  // grows with each change of Owner
	Installed  int64  // the assignment under which the owner has said that it has the data
	Receipt    string // the nonce of the data that the owner got from another host, "" for its own
	To         string // the host that a move goes to, "" for no move
	Offer      string // the nonce of the offer of the move
	Received   string // the nonce of the offer that the new host has stored
	Wanted     bool   // the gateway is wanted up
	Deleting   bool
}

// Local is what a host has of a profile. Data that was set aside, or came in, is not known to hinit.
type Local struct {
	Live     bool     // it is a profile of hinit, which may be started
	Aside    int64    // the assignment under which data was set aside to be given away, 0 for none
	Incoming string   // the nonce of the data that came from another host and was stored in full, "" for none
	Up       bool     // something of the gateway is alive
	Offered  []string // the nonces of offers that this process has made since the gateway ended
	Sent     []string // the nonces whose data was sent in full, with the sum that the receipt has
}

// Step is what a host does next about one profile.
type Step int

// The steps.
const (
	Wait         Step = iota // for others
	Run                      // have the gateway run
	Halt                     // have the gateway end
	Create                   // make the profile without data
	Report                   // write that the data is here
	Missing                  // write that the data is not here; start nothing
	Offer                    // write how the data is had
	SetAside                 // take the data away from hinit
	TakeBack                 // give the data back to hinit
	Give                     // write that the other host is the owner
	Fetch                    // get the data from the owner
	Received                 // write that the data was stored
	Install                  // make a profile of the data that came
	Retire                   // end the gateway and keep its data out of the way
	Drop                     // delete the data that was set aside
	DropIncoming             // delete the data that came
	Finish                   // end the gateway for good and let the object go
)

var stepNames = [...]string{
	"Wait", "Run", "Halt", "Create", "Report", "Missing", "Offer", "SetAside", "TakeBack", "Give", "Fetch", "Received", "Install", "Retire", "Drop",
	"DropIncoming", "Finish",
}

// String implements [fmt.Stringer].
func (s Step) String() string { return stepNames[s] }

// Next returns the next step of the host me about one profile. o is nil when no object has the UID of the data. See the table in the
// introduction of the package.
func Next(me string, o *Object, l Local) Step {
	switch {
	case o == nil && (l.Live || l.Aside != 0):
		return Retire
	case o == nil && l.Incoming != "":
		return DropIncoming
	case o == nil:
		return Wait
	case o.Owner != me:
		return foreign(me, o, l)
	case o.Deleting:
		return Finish
	case o.Receipt != "" && l.Incoming == o.Receipt:
		return Install
	case o.To == "":
		return own(o, l)
	}
	return giveAway(o, l)
}

// own is about a profile of this host.
func own(o *Object, l Local) Step {
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

// giveAway is about a profile that this host is to give to another.
func giveAway(o *Object, l Local) Step {
	complete := o.Received != "" && o.Received == o.Offer && slices.Contains(l.Sent, o.Offer)
	switch {
	case l.Live && l.Up:
		return Halt
	case l.Live && complete:
		return SetAside
	case l.Live && o.Offer != "" && o.Received != o.Offer && slices.Contains(l.Offered, o.Offer):
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

// foreign is about a profile of another host.
func foreign(me string, o *Object, l Local) Step {
	switch {
	case l.Live:
		return Retire
	case l.Aside != 0 && o.Installed == o.Assignment && o.Assignment > l.Aside:
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
