// Package placement decides where the profiles of a pool are, and who may start what. It has pure functions only: [Decide] for the
// controller, [Next] for a host. It reads no clock, knows no API and owns no goroutine.
//
// The data of a profile is on the volume of one host, Owner. The rules that keep a profile from running twice are:
//
//  1. The controller sets Owner only while it is empty. Every other change of Owner is one write of the owner.
//  2. The owner gives a profile away after three steps: its gateway has ended, the new host has stored all data, and the data is set
//     aside, where no gateway starts from it.
//  3. A host starts a gateway only after a fresh read says that it is the owner and no move has begun.
//  4. A host makes an empty profile only while Installed is 0. Later a missing profile is lost, and nothing starts.
//  5. Each write carries the version of the object that was read, so a write after a stale read fails.
//
// A pod of its own is a host that takes one profile. The controller makes and ends such pods, and their volumes stay, so an ended one is a
// host that has crashed. [Decide] goes by the placement of a profile:
//
//	placement  owner      move        decision
//	pod        none       -           Assign its pod once that is ready, until then Hold
//	pod        a host     none        Begin to its pod once that is ready
//	pod        its pod    none        nothing
//	packed     its pod    none        Begin to a host with room
//	pod        any        to a host   Cancel unless the data is stored there; then the next move goes back
//	packed     any        to its pod  the same
//
// A profile has a pod while its placement is pod, and while the pod is its owner or the goal of its move.
//
// The steps of a host, by what the object says and what the volume has. "me" is the host. A step that is done changes the state, so the
// next call returns the next step.
//
//	owner     move      volume           gateway  receipt      step
//	me        none      live             -        -            Report where Installed is old, else Run or Halt
//	me        any       incoming         -        is its nonce Install
//	me        none      aside, current   -        -            TakeBack: the move was cancelled
//	me        none      nothing          -        -            Create where Installed is 0, else Missing
//	me        begun     live             up       -            Halt
//	me        begun     live             down     none         Offer where this process has made none, else Wait
//	me        begun     live             down     complete     SetAside
//	me        begun     aside, current   -        complete     Give
//	me        begun     aside, current   -        none, other  TakeBack
//	me        begun     nothing          -        -            Missing
//	another   to me     any              -        -            Fetch what is offered; Received once it is stored
//	another   any       live             any      -            Retire: another host was made the owner by force
//	any       any       aside, old       -        -            Drop once the owner has the data, else Wait
//	another   not to me incoming         -        -            DropIncoming
//	me        deleting  any              any      -            Finish: end the gateway, keep or delete the data, let the object go
//	no object -         live, aside      any      -            Retire
package placement
