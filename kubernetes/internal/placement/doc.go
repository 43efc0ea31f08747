// Package placement decides on which host of a pool each profile lives, and which host may start its gateway. Its functions are
// pure: the controller calls [Decide], and a host calls [Next]. It reads no clock, calls no API and starts no goroutine.
//
// The data of a profile is on the volume of one host, which the field Owner names. These rules keep a profile from running twice:
//
//  1. The controller sets Owner only while it is empty. Every other change of Owner is a single write by the owner itself.
//  2. The owner gives a profile away only after three steps. The gateway has ended, the new host has stored all data, and the
//     data is set aside, where no gateway starts from it.
//  3. A host starts a gateway only after a fresh read says that it is the owner and that no move has begun.
//  4. A host creates an empty profile only while Installed is 0. Later, a profile whose data is missing is lost, and nothing is
//     started.
//  5. Each write carries the version of the object that was read, so a write after a stale read fails.
//  6. The controller gives up the data of an owner only when the user asks for it, only if the profile was reported as lost, and once.
//  7. A host is removed only while no profile is on it or moves to it. Until then its profiles move away, or it stays.
//
// A profile may have a pod of its own. Such a pod is a host that takes one profile. The controller creates and deletes these
// pods, and their volumes are kept, so a deleted pod looks like a host that has crashed. [Decide] depends on the placement that
// the spec asks for:
//
//	placement  owner      move        decision
//	pod        none       -           Assign its pod once that is ready, until then MarkPending
//	pod        a host     none        StartMove to its pod once that is ready
//	pod        its pod    none        nothing
//	packed     its pod    none        StartMove to a host with room
//	pod        any        to a host   CancelMove; if the owner has given the data away, the next move goes back
//	packed     any        to its pod  the same
//
// The pod of a profile exists while the placement is pod, and while the pod is the owner or the target of a move.
//
// A move fails if attempts to send or store its home keep failing, or if nothing is sent for a long time. Then the owner ends it.
// [MoveDelay] is the time until the next move of this profile. Until then it doesn't count as a move of the pool. Later its moves
// take at most half of the pool's moves. Moves that are stuck, or whose owner is lost, don't count either.
//
// The next step of a host depends on the object and on the data on its volume. Each step changes the state, so the next call of
// [Next] returns the step after it. In the table, "me" is the host. Live data is where hinit can start the gateway from it.
// Incoming data was received and is not installed yet. Data that is aside was set aside to be given away, under the current or an
// old assignment. The receipt is the confirmation in the status that the new host has stored the data. [Live] says which home is live.
// Beside data that is aside under the current assignment, no home is: a process that was left over has made it. The same holds for a home
// without a record after the owner has reported Missing.
//
//	owner     move      volume           gateway  receipt      step
//	me        none      live             -        -            Report where Installed is old, else Run or Halt
//	me        any       live             -        -            Report where the status says that the data is missing
//	me        any       incoming         -        is its nonce Install where Installed is old
//	me        none      aside, current   -        -            TakeBack: the move was cancelled
//	me        none      nothing          -        -            Create where Installed is 0, else Missing
//	me        begun     live             up       -            Halt
//	me        begun     live             down     none         Offer where this process has made none, else Wait
//	me        begun     live             down     complete     SetAside
//	me        begun     aside, current   -        complete     Give
//	me        begun     aside, current   -        none, other  TakeBack
//	me        begun     nothing          -        -            Missing
//	me        failed    live, aside      any      any          CallOff: the move ends, and the gateway runs here again
//	me        stalled   live, aside      any      none, other  CallOff
//	another   to me     any              -        -            Fetch what is offered; Received once it is stored
//	another   any       live             any      -            Retire: another host was made the owner by force
//	any       any       aside, old       -        -            Drop once the owner has confirmed that it has data, else Wait
//	another   not to me incoming         -        -            DropIncoming
//	me        deleting  any              any      -            Finish: end the gateway, keep or delete the data, let the object go
//	no object -         live             any      -            Retire
//	no object -         aside            -        -            Drop
//
// Besides Finish, only Drop deletes data that may be the only copy. It deletes what was set aside under the assignment before the current
// one, if the owner has confirmed the current one. It retains all other data that is aside: between the two assignments, the data may have
// been given up.
package placement
