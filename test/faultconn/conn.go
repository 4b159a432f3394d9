package faultconn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ErrInjected is what the wrapped side's own calls return after a Cut or Reset.
var ErrInjected = errors.New("faultconn: connection broken on purpose")

// Side says which end of the connection a Conn's owner is.
type Side int

// The owner of a wrapped connection writes to the server (Client) or to the client (Server).
const (
	Client Side = iota
	Server
)

// Conn is a net.Conn with faults. Like any net.Conn it may be used by several
// goroutines; it starts none. A stalled Read or Write ends at Release, at its
// deadline, or at Close.
type Conn struct {
	net.Conn
	readMu, writeMu sync.Mutex // each serialises one lane
	in, out         *lane
	pending         []byte // bytes read but behind a fault, guarded by readMu
	scratch         []byte
	readEOF         bool // a HalfClose of the incoming direction happened, guarded by readMu
	broken          atomic.Bool
	closed          chan struct{}
	closeOnce       sync.Once
	closeErr        error
	readBy, writeBy alarm
}

// Wrap returns conn with faults; side is the end that conn's owner stands on.
func Wrap(conn net.Conn, side Side, faults ...Fault) *Conn {
	w := &wire{}
	in, out := ToClient, ToServer
	if side == Server {
		in, out = out, in
	}
	return &Conn{
		Conn: conn, in: newLane(w, in, faults), out: newLane(w, out, faults),
		closed: make(chan struct{}),
	}
}

// Read delivers the bytes in front of the next fault, then the fault.
func (c *Conn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for {
		// A fault on the very next boundary does not wait for a byte to arrive.
		if _, f := c.in.admit(nil); f != nil {
			if err := c.happen(*f, &c.readBy); err != nil {
				return 0, err
			}
			continue
		}
		if c.broken.Load() {
			return 0, ErrInjected
		}
		if c.readEOF {
			return 0, io.EOF
		}
		if len(c.pending) == 0 {
			if c.scratch == nil {
				c.scratch = make([]byte, 32<<10)
			}
			n, err := c.Conn.Read(c.scratch)
			if n == 0 {
				return 0, err
			}
			c.pending = c.scratch[:n]
		}
		n, f := c.in.admit(c.pending[:min(len(p), len(c.pending))])
		copy(p, c.pending[:n])
		c.pending = c.pending[n:]
		if f != nil {
			c.in.faults = append([]Fault{*f}, c.in.faults...) // due at once on the next call
		}
		if n > 0 {
			return n, nil
		}
	}
}

// Write passes p on up to the next fault, lets it happen, and goes on if it can.
func (c *Conn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	done := 0
	for {
		if c.broken.Load() {
			return done, ErrInjected
		}
		n, f := c.out.admit(p[done:])
		if n > 0 {
			m, err := c.Conn.Write(p[done : done+n])
			done += m
			if err != nil {
				return done, err
			}
		}
		if f != nil {
			if err := c.happen(*f, &c.writeBy); err != nil {
				return done, err
			}
		}
		if f == nil && done == len(p) {
			return done, nil
		}
	}
}

// happen carries out f; an error ends the call that met it.
func (c *Conn) happen(f Fault, deadline *alarm) error {
	switch f.Action {
	case Cut:
		c.broken.Store(true)
		c.Close()
		return ErrInjected
	case Reset:
		c.broken.Store(true)
		setLingerZero(c.Conn)
		c.Close()
		return ErrInjected
	case HalfClose:
		if f.At.Direction == c.in.framer.dir {
			c.readEOF = true
			return nil
		}
		return closeWrite(c.Conn)
	case Stall:
		select {
		case <-f.Release:
			return nil
		case <-deadline.rings():
			// The stall is not over: it is met again by the next call.
			l := c.in
			if deadline == &c.writeBy {
				l = c.out
			}
			l.faults = append([]Fault{f}, l.faults...)
			return os.ErrDeadlineExceeded
		case <-c.closed:
			return net.ErrClosed
		}
	}
	panic("bug: faultconn: " + f.String() + " cannot happen to a Conn")
}

// Close closes the connection underneath and ends stalled calls.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		close(c.closed)
		c.closeErr = c.Conn.Close()
		c.readBy.set(time.Time{})
		c.writeBy.set(time.Time{})
	})
	return c.closeErr
}

// SetDeadline sets both deadlines, for stalled calls as well.
func (c *Conn) SetDeadline(t time.Time) error {
	c.readBy.set(t)
	c.writeBy.set(t)
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline sets the deadline of reads, stalled ones included.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.readBy.set(t)
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline sets the deadline of writes, stalled ones included.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writeBy.set(t)
	return c.Conn.SetWriteDeadline(t)
}

// alarm is a deadline that a select can wait for.
type alarm struct {
	mu    sync.Mutex
	timer *time.Timer
	ring  chan struct{}
}

// rings returns a channel that is closed while the deadline has passed. A
// deadline that is moved while somebody waits rings the old channel only if
// it moves into the past: the waiter then meets its stall again.
func (a *alarm) rings() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.channelLocked()
}

func (a *alarm) channelLocked() chan struct{} {
	if a.ring == nil {
		a.ring = make(chan struct{})
	}
	return a.ring
}

func (a *alarm) set(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	ring := a.channelLocked()
	select {
	case <-ring: // had passed: a fresh one for the new deadline
		a.ring = make(chan struct{})
		ring = a.ring
	default:
	}
	if t.IsZero() {
		return
	}
	in := time.Until(t)
	if in <= 0 {
		close(ring)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(in, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.timer == timer {
			close(ring)
			a.timer = nil
		}
	})
	a.timer = timer
}

func setLingerZero(conn net.Conn) {
	if l, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
}

// closeWrite ends the writing side; a connection that has no half close (net.Pipe) is closed.
func closeWrite(conn net.Conn) error {
	if h, ok := conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return conn.Close()
}
