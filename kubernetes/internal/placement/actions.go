package placement

// Action is one action that the controller takes. It has one of the types below.
type Action interface{ isAction() }

type (
	// Assign makes Host the owner of a profile that has none.
	Assign struct{ Profile, Host string }
	// StartMove begins a move of a profile to the host To.
	StartMove struct{ Profile, To, Reason string }
	// CancelMove ends a move that can't be completed.
	CancelMove struct{ Profile, Reason string }
	// MarkUnreachable reports that the owner of a profile is lost or restarting.
	MarkUnreachable struct{ Profile, Condition, Reason string }
	// MarkReachable reports that the lost owner of a profile is back.
	MarkReachable struct{ Profile string }
	// MarkPending reports why a profile has no host.
	MarkPending struct{ Profile, Reason string }
	// GiveUp removes the owner of a profile and so abandons the data on the owner, as the user has requested with
	// spec.recover. It also records that this was done.
	GiveUp struct{ Profile, Owner string }
	// HandleRecovery records that spec.recover needs no further action. Ignored is the reason why it was ignored, or "" if
	// the user has removed it.
	HandleRecovery struct{ Profile, Ignored string }
	// Replace restarts the container or the pod of a host, so that it runs the wanted image.
	Replace struct{ Host string }
)

func (Assign) isAction()          {}
func (StartMove) isAction()       {}
func (CancelMove) isAction()      {}
func (MarkUnreachable) isAction() {}
func (MarkReachable) isAction()   {}
func (MarkPending) isAction()     {}
func (GiveUp) isAction()          {}
func (HandleRecovery) isAction()  {}
func (Replace) isAction()         {}
