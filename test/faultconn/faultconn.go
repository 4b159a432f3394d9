// Package faultconn breaks PostgreSQL connections on purpose, at exact places.
//
// A Fault names a place (before byte N or before message N of one direction)
// and what happens there: the connection is cut, reset, half closed, stalled
// until the test releases it, or from then on delivered in small pieces. The
// same faults work in two shapes: Wrap puts them on one net.Conn (no goroutine
// of its own, works with net.Pipe inside testing/synctest), and Proxy puts them
// between any two programs over real sockets: between a client and multipooler
// as well as between multipooler and a server.
//
// Messages are counted from 0 in each direction on its own. Towards the server
// message 0 is the startup packet (an SSLRequest or GSSENCRequest counts as a
// message, and so does its one-byte answer in the other direction). After a
// server has agreed to encryption, or after bytes that cannot be PostgreSQL's,
// there is nothing left to count: message faults no longer fire, byte faults do.
package faultconn

import (
	"fmt"
	"iter"
)

// Direction of the bytes a fault looks at.
type Direction int

// The two directions, whichever end of the connection a Conn wraps.
const (
	ToServer Direction = iota
	ToClient
)

func (d Direction) String() string {
	if d == ToServer {
		return "to server"
	}
	return "to client"
}

// Action is what happens when a fault's point is reached.
type Action int

const (
	// Cut closes the connection in both directions (FIN).
	Cut Action = iota
	// Reset closes it with SO_LINGER 0, so that the peers see ECONNRESET.
	Reset
	// HalfClose ends this direction only; the other one goes on.
	HalfClose
	// Stall holds this direction's bytes back until Fault.Release is closed.
	Stall
	// Fragment delivers the rest of this direction in pieces of at most
	// Fault.Size bytes (0 means 1).
	Fragment
)

func (a Action) String() string {
	switch a {
	case Cut:
		return "cut"
	case Reset:
		return "reset"
	case HalfClose:
		return "half-close"
	case Stall:
		return "stall"
	case Fragment:
		return "fragment"
	}
	return fmt.Sprintf("Action(%d)", int(a))
}

// Point is a place in one direction of a connection.
type Point struct {
	Direction Direction
	N         int64
	InBytes   bool // N counts bytes, not messages
}

// BeforeMessage is the boundary in front of message n of direction d: n
// messages have gone through whole, and no byte of the next one.
func BeforeMessage(d Direction, n int64) Point { return Point{Direction: d, N: n} }

// BeforeByte is reached when n bytes of direction d have gone through.
func BeforeByte(d Direction, n int64) Point { return Point{Direction: d, N: n, InBytes: true} }

func (p Point) String() string {
	unit := "message"
	if p.InBytes {
		unit = "byte"
	}
	return fmt.Sprintf("before %s %d %s", unit, p.N, p.Direction)
}

// Fault happens once, as soon as its point is reached: it does not wait for
// the byte after the point.
type Fault struct {
	At      Point
	Action  Action
	Size    int             // Fragment: largest piece in bytes
	Release <-chan struct{} // Stall: goes on when closed; nil stalls until the connection is closed
}

func (f Fault) String() string { return f.Action.String() + " " + f.At.String() }

// EveryBoundary yields one fault for each of the first n message boundaries of
// both directions, for tables that run one conversation once per fault.
func EveryBoundary(a Action, n int64) iter.Seq[Fault] {
	return func(yield func(Fault) bool) {
		for _, d := range []Direction{ToServer, ToClient} {
			for i := range n {
				if !yield(Fault{At: BeforeMessage(d, i), Action: a}) {
					return
				}
			}
		}
	}
}
