package connpool

import "fmt"

// OpKind says what the shell has to do.
type OpKind uint8

const (
	// OpDial: Conn is Dialing and holds a slot. Dial and log in (Loop is where
	// the waiter is, a hint where to attach), then answer Dialed or DialFailed.
	OpDial OpKind = iota

	// OpGrant: Conn is Active and belongs to Waiter, which has been removed from
	// its queue. The resource is still claimed for the loop that called; Loop is
	// the waiter's.
	OpGrant

	// OpClose: Conn is Draining and its resource is claimed for Loop, where it
	// is to be terminated. Answer Gone when the server's EOF was seen; until
	// then the slot is held.
	OpClose

	// OpFail: Waiter has been removed from its queue; deliver Err.
	OpFail
)

func (k OpKind) String() string {
	switch k {
	case OpDial:
		return "dial"
	case OpGrant:
		return "grant"
	case OpClose:
		return "close"
	case OpFail:
		return "fail"
	}
	return fmt.Sprintf("OpKind(%d)", uint8(k))
}

// Op is something to be done in the world as the result of a call. Ops are
// appended to the caller's slice; the caller executes them, each once, after the
// call has returned.
type Op[R Resource] struct {
	Kind   OpKind
	Loop   int
	Conn   *Conn[R]   // all but OpFail
	Waiter *Waiter[R] // OpGrant, OpFail
	Pool   *UserPool[R]
	Err    error // OpFail
}
