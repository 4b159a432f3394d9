package connpool

import "fmt"

// Resource is what the pool needs of a server connection.
type Resource interface {
	comparable

	// TryClaim takes a parked connection for a loop; from any goroutine. False:
	// somebody, usually its own loop, is at it right now; walk away.
	TryClaim(loop int) bool

	// Park gives up ownership: from now on only a successful TryClaim may touch
	// the connection. Called under the Arbiter's lock, by the owner; must not
	// block and must not call back.
	Park()

	// Loop is the loop the connection is parked on or claimed for. Called by
	// its owner only.
	Loop() int
}

// State is where a server connection is in its life; the package comment has
// the picture.
type State uint8

const (
	Dialing  State = iota // a slot is held; the shell dials and logs in
	Idle                  // parked, no user, at a clean boundary
	Active                // lent to one borrower
	Draining              // being terminated; the server may still count it
	Closed                // terminal: the server's EOF was seen, or there never was a backend
	numStates
)

var stateNames = [numStates]string{"dialing", "idle", "active", "draining", "closed"}

func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// next has, per state, one bit for each state it may move to.
var next = [numCounters]uint8{
	Dialing:  1<<Idle | 1<<Active | 1<<Draining | 1<<Closed,
	Idle:     1<<Active | 1<<Draining | 1<<Closed,
	Active:   1<<Idle | 1<<Draining | 1<<Closed,
	Draining: 1 << Closed,
}

// SettingsID names an interned set of session settings; 0 is the bare set that
// a fresh connection has.
type SettingsID uint32

// Conn is a held slot and, once dialled, the server connection in it.
type Conn[R Resource] struct {
	id   uint64
	pool *UserPool[R]

	// Written by the shell while it owns the connection, read under the lock
	// while it is Idle.
	res      R
	settings SettingsID

	// Guarded by the Arbiter's lock.
	state     State
	loop      int // parked on, or last known to be used by
	borrow    Borrow
	openedAt  int64
	retireAt  int64 // neverNS: no lifetime
	idleSince int64
	slot      int          // index in Arbiter.conns
	heir      *UserPool[R] // Draining only: the pool that waits for this slot
	inPool    link[Conn[R]]
	inArbiter link[Conn[R]] // Idle: Arbiter.lru; Draining: Arbiter.orphans or, with an heir, Arbiter.bequeathed
}

// ID numbers the connections of an Arbiter from 1.
func (c *Conn[R]) ID() uint64 { return c.id }

// Pool is the user pool the connection is logged in for.
func (c *Conn[R]) Pool() *UserPool[R] { return c.pool }

// Resource is the connection itself; for its owner, and the zero value until
// it was dialled.
func (c *Conn[R]) Resource() R { return c.res }

// SetResource lets the dialling goroutine attach the connection before it
// reports Dialed.
func (c *Conn[R]) SetResource(r R) { c.res = r }

// Settings is what the server connection is aligned to; for its owner.
func (c *Conn[R]) Settings() SettingsID { return c.settings }

// SetSettings records an alignment that the server has confirmed; for its owner.
func (c *Conn[R]) SetSettings(s SettingsID) { c.settings = s }

// OpenedAt is when Dialed was called; for its owner.
func (c *Conn[R]) OpenedAt() int64 { return c.openedAt }

// Borrow is what the connection was last borrowed for; for its owner.
func (c *Conn[R]) Borrow() Borrow { return c.borrow }

// State takes the Arbiter's lock: for diagnosis, not for the hot path.
func (c *Conn[R]) State() State {
	c.pool.arb.mu.Lock()
	defer c.pool.arb.mu.Unlock()
	return c.state
}

// setState is the only writer of c.state after newConn, so that the counters
// cannot drift from the truth.
func (c *Conn[R]) setState(to State) {
	from := c.state
	if next[from%numCounters]&(1<<to) == 0 {
		panic(illegal{c.id, from, to})
	}
	c.state = to
	p := c.pool
	p.n.move(from, to)
	p.arb.n.move(from, to)
}

// illegal is what setState panics with; its text is made only when it is read,
// which keeps setState small.
type illegal struct {
	id       uint64
	from, to State
}

func (e illegal) Error() string {
	return fmt.Sprintf("bug: server connection %d: %v -> %v", e.id, e.from, e.to)
}

// tally counts connections per state; its length is a power of two, so that
// the index needs no check. The count of Closed only grows.
type tally [numCounters]int

const numCounters = 8

func (t *tally) move(from, to State) {
	t[from%numCounters]--
	t[to%numCounters]++
}
