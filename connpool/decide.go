package connpool

import "time"

// decision is what becomes of a connection that has no user.
type decision uint8

const (
	keepIdle      decision = iota // park it
	giveToWaiter                  // to a waiter of its own pool
	closeForOther                 // terminate it; the slot goes to the other pool's waiter
	closeForGood                  // terminate it; it may not be used again
)

// freed is all that the decision sees. It is a snapshot: no lock, no clock, no
// pointers.
type freed struct {
	closing  bool          // the arbiter is shutting down
	expired  bool          // the connection's lifetime is over
	over     bool          // more connections than the capacity allows
	idleFull bool          // as many idle connections as are allowed, without this one
	held     time.Duration // for how long this connection has been its pool's
	own      claim         // waiters of the connection's own pool
	other    claim         // the longest-waiting other pool that has too few slots on the way
}

// claim is one user pool's wish for the slot.
type claim struct {
	waiting  int           // waiters; 0: no claim, the rest is meaningless
	arrived  uint64        // order of arrival of its head
	waited   time.Duration // how long its head has waited
	incoming int           // slots on their way to it: dials, and drains it inherits
}

// decide is first-come-first-served between users, with locality: a connection
// goes on serving its own user, which costs nothing, as long as no other user
// has been waiting clearly longer, since a switch costs a terminate and a dial.
//
// A switch away from an own waiter needs the other head to have come first and
// to have waited for more than switchAfter; the connection to have served its
// user for switchAfter, so that it is not switched faster than that pays; and
// no slot to be on its way to the other head already.
// Without an own waiter there is nothing to weigh: an unused slot is never kept
// from a waiter.
func decide(f freed, switchAfter time.Duration) decision {
	switch {
	case f.closing, f.expired, f.over:
		return closeForGood
	case f.own.waiting > 0:
		o := f.other
		if o.waiting > 0 && o.arrived < f.own.arrived && o.waited > switchAfter &&
			f.held >= switchAfter && o.incoming == 0 {
			return closeForOther
		}
		return giveToWaiter
	case f.other.waiting > 0:
		return closeForOther
	case f.idleFull:
		return closeForGood
	default:
		return keepIdle
	}
}
