package pooler

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/session"
)

// A panic is a bug. One that comes up in the code of a session costs that
// session, and the server connection it holds, which is terminated and never
// reused; the others go on. The deferred calls stand at the boundaries where it
// is known whose code runs: the handlers of sockets, timers, grants and what is
// posted for a client. Whatever panics elsewhere, or while the broken pieces
// are put away, ends the process: then the state of all is in doubt.

// contain is deferred around everything that runs for one client.
func (c *clientConn) contain() {
	if r := recover(); r != nil {
		c.broke(r)
	}
}

// broke ends the client after a panic, without asking its session.
func (c *clientConn) broke(r any) {
	p := c.w.p
	p.panicked(r, c.identity())
	sc := c.sc
	c.sc = nil
	if !c.dead {
		switch {
		case c.login != nil:
			c.closeQuietly()
		default:
			if c.place != nil {
				c.CancelBorrow() // false: granted will find it dead
			}
			c.countPins(0)
			c.end(session.EndBug, fmt.Sprint(r))
		}
	}
	if sc != nil {
		sc.client = nil
		sc.shatter()
	}
}

// contain is deferred around everything that runs for a server connection that
// nobody has borrowed.
func (sc *serverConn) contain() {
	if r := recover(); r != nil {
		sc.broke(r)
	}
}

func (sc *serverConn) broke(r any) {
	sc.w.p.panicked(r, zap.Inline(sc))
	sc.shatter()
}

// shatter gets rid of a server connection of whose state nothing is known: not
// even Terminate can be written.
func (sc *serverConn) shatter() {
	sc.srv.Shatter("bug")
	switch {
	case sc.ended:
		sc.bury()
	default:
		sc.terminate(closeError)
	}
}

func (p *Pooler) panicked(r any, who zap.Field) {
	p.stats.panics.Add(1)
	p.log.Error("bug: a session was ended by a panic", who, zap.String("panic", fmt.Sprint(r)), zap.StackSkip("stack", 2))
}
