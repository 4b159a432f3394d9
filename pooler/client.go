package pooler

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// clientConn is one client on its loop: the socket, the session and the loan of
// a server connection. It implements eventloop.Handler for the socket and
// session.Host for the session. Everything is for the loop of w.
type clientConn struct {
	w    *worker
	ec   *eventloop.Conn
	next *clientConn // in w's list
	prev *clientConn

	login *login // until the session starts
	sess  *session.Session
	route *route
	sc    *serverConn // borrowed

	place *place // in the queue; nil = it does not wait
	timer eventloop.Timer

	// home is the loop that owns the client, nil while it moves; anybody may
	// read it.
	home          atomic.Pointer[worker]
	id            uint64
	cancelPID     uint32
	cancelKey     []byte      // never changes after issue
	lastServerPID uint32      // for the log of its end
	pins          session.Pin // as counted in the metrics
	connected     int64
	since         int64 // of the last request, or of the wait
	stallAt       int64 // when the client began to take nothing; 0 = it takes
	stallLeft     int   // its backlog then
	queries       uint64
	txs           uint64
	pinnedAt      int64
	peer          peer
	dead          bool
}

// Received implements eventloop.Handler.
func (c *clientConn) Received(_ *eventloop.Conn, p []byte) int {
	if c.login != nil {
		return c.login.received(p)
	}
	n := c.sess.FromClient(p)
	if c.dead {
		return len(p)
	}
	if n > 0 {
		c.route.bytesReceived.Add(uint64(n))
	}
	if sc := c.sc; sc != nil && sc.ec.Backlog() >= c.w.p.highWater {
		c.ec.PauseRead() // until the server takes it: serverConn.Drained
	}
	return n
}

// Drained implements eventloop.Handler: the client takes bytes again.
func (c *clientConn) Drained(*eventloop.Conn) {
	c.stallAt = 0
	if c.sc != nil {
		c.sc.ec.ResumeRead()
	}
}

// Ended implements eventloop.Handler.
func (c *clientConn) Ended(_ *eventloop.Conn, err error) {
	if c.dead {
		return
	}
	if c.login != nil {
		c.login.ended(err)
		return
	}
	if errors.Is(err, eventloop.ErrLoopStopped) {
		c.sess.Kill(session.EndShutdown, shutdownError())
		return
	}
	if !errors.Is(err, io.EOF) {
		c.w.p.log.Debug("client connection failed", zap.Uint64("client", c.id), zap.Error(err))
	}
	c.sess.ClientEnded(err)
}

// ToClient implements session.Host.
func (c *clientConn) ToClient(p []byte) {
	c.ec.Write(p)
	c.route.bytesSent.Add(uint64(len(p)))
}

// ToServer implements session.Host.
func (c *clientConn) ToServer(p []byte) { c.sc.ec.Write(p) }

// Now implements session.Host.
func (c *clientConn) Now() int64 { return c.w.now() }

// Redeliver implements session.Host.
func (c *clientConn) Redeliver() { c.ec.Redeliver() }

// Borrow implements session.Host.
func (c *clientConn) Borrow(class connpool.Class) (*session.Server, error) {
	w := c.w
	c.since = w.now()
	ops := w.takeOps()
	pl := w.takePlace()
	pc, err := c.route.target.arb.Get(c.route.pool, &pl.waiter, connpool.Borrow{
		Class: class, Settings: connpool.SettingsID(c.sess.Settings().ID()), Loop: w.id(),
	}, c.since, &ops)
	if err == nil && pc == nil {
		pl.c, c.place = c, pl
	} else {
		w.givePlace(pl)
	}
	w.run(ops)
	if err != nil {
		return nil, err
	}
	if pc == nil {
		if limit := w.p.config().Pool.AcquireTimeout; limit > 0 {
			c.arm(c.since + int64(limit))
		}
		return nil, nil
	}
	sc := pc.Resource()
	if err := w.loop.Adopt(sc.ec); err != nil {
		sc.ec.Discard()
		w.gone(sc)
		return nil, errServerGone
	}
	sc.w = w
	w.acquire.Observe(0)
	c.lend(sc)
	return sc.srv, nil
}

// lend makes sc the client's.
func (c *clientConn) lend(sc *serverConn) {
	c.sc = sc
	sc.client = c
	c.lastServerPID = sc.pid
	c.route.assignments.Add(1)
}

// CancelBorrow implements session.Host.
func (c *clientConn) CancelBorrow() bool {
	if !c.route.target.arb.Cancel(&c.place.waiter) {
		return false
	}
	c.leaveQueue()
	return true
}

// leaveQueue: the place is not in the queue any more, and no grant for it is on
// its way.
func (c *clientConn) leaveQueue() {
	c.w.givePlace(c.place)
	c.place = nil
}

// granted takes the server connection that the client has waited for; it goes
// back at once when nobody wants it any more.
func (c *clientConn) granted(sc *serverConn) {
	c.leaveQueue()
	if c.dead || !c.sess.Waiting() {
		c.w.put(sc)
		return
	}
	waited := c.w.now() - c.since
	c.w.acquire.Observe(time.Duration(waited))
	c.route.waited.Add(uint64(max(waited, 0)))
	c.lend(sc)
	c.sess.Granted(sc.srv)
	c.touched()
}

// refused takes the failure of the borrow.
func (c *clientConn) refused(err error) {
	c.leaveQueue()
	if c.dead || !c.sess.Waiting() {
		return
	}
	c.sess.Refused(err)
}

// Release implements session.Host.
func (c *clientConn) Release(sv *session.Server, how session.Disposal) {
	sc := c.sc
	c.sc = nil
	c.countPins()
	sc.client = nil
	sc.ec.ResumeRead()
	c.ec.ResumeRead()
	c.stallAt = 0
	sc.release(how)
}

// Learned implements session.Host.
func (c *clientConn) Learned(p *session.Params) {
	c.route.learn(c.sess.Settings(), p)
}

// Pinned implements session.Host.
func (c *clientConn) Pinned(reason session.Pin) {
	if reason&session.PinMode != 0 {
		return
	}
	if !c.route.pinLogged.Swap(true) {
		c.w.p.log.Info("session pinned to its server connection", c.identity(), zap.Uint32("server_pid", c.sc.pid), zap.Stringer("reason", reason))
	} else if ce := c.w.p.log.Check(zap.DebugLevel, "session pinned to its server connection"); ce != nil {
		ce.Write(c.identity(), zap.Stringer("reason", reason))
	}
}

// End implements session.Host.
func (c *clientConn) End(reason session.EndReason, detail string) { c.end(reason, detail) }

// end closes the client after what is queued for it, and logs why.
func (c *clientConn) end(reason session.EndReason, detail string) {
	if c.dead {
		return
	}
	c.dead = true
	w := c.w
	w.loop.Forget(&c.timer)
	w.remove(c)
	c.account()
	w.p.clientEnded(c, reason, detail)
	c.ec.Close()
}

// account adds what the session has counted to its route.
func (c *clientConn) account() {
	if c.sess == nil || c.route == nil {
		return
	}
	c.countPins()
	q, t := c.sess.Counts()
	if q != c.queries {
		c.route.queries.Add(q - c.queries)
		c.route.transactions.Add(t - c.txs)
		c.queries, c.txs = q, t
	}
}

// touched follows each event of the server connection and of the queue: the
// session may have become idle, in a transaction or not, the client may have
// stopped to read.
func (c *clientConn) touched() {
	if c.dead {
		return
	}
	c.account()
	w := c.w
	if c.sc == nil {
		c.atRest()
		return
	}
	if c.ec.Backlog() >= w.p.highWater && c.stallAt == 0 {
		c.sc.ec.PauseRead() // until the client takes it: Drained
		c.stallAt, c.stallLeft = w.now(), c.ec.Backlog()
		if d := w.p.config().Client.StallTimeout; d > 0 {
			c.arm(c.stallAt + int64(d))
		}
	}
	if c.sess.IdleInTransaction() {
		c.since = w.now()
		if d := w.p.config().Pool.ReservedInactivityTimeout; d > 0 {
			c.arm(c.since + int64(d))
		}
	}
	if w.p.draining.Load() {
		c.drain()
	}
}

// atRest: the client holds no server connection.
func (c *clientConn) atRest() {
	w := c.w
	if w.p.draining.Load() {
		c.drain()
		return
	}
	if !c.sess.Idle() {
		return
	}
	if idle := w.p.config().Client.IdleTimeout; idle > 0 {
		c.since = w.now()
		c.arm(c.since + int64(idle))
	}
}

// countPins keeps the gauge of pins by reason.
func (c *clientConn) countPins() {
	now := c.sess.Pins() &^ session.PinMode
	if now == c.pins {
		return
	}
	st := &c.w.p.stats
	(now &^ c.pins).Each(func(i int) { st.pins[i].Add(1) })
	(c.pins &^ now).Each(func(i int) { st.pins[i].Add(-1) })
	switch {
	case c.pins == 0:
		c.pinnedAt = c.w.now()
		c.route.pinned.Add(1)
	case now == 0:
		c.route.pinned.Add(-1)
	}
	c.pins = now
}

// identity is who the client is, for the log.
func (c *clientConn) identity() zap.Field { return zap.Inline(c) }

// closeQuietly closes a client that nobody should be told about: a cancel
// request, a scanner, a refused one that has been answered.
func (c *clientConn) closeQuietly() {
	if c.dead {
		return
	}
	c.dead = true
	c.w.loop.Forget(&c.timer)
	c.w.remove(c)
	c.w.p.loggingIn.Add(-1)
	c.ec.Close()
}

// fatal sends a FATAL before the session exists, and closes.
func (c *clientConn) fatal(e *protocol.Error) {
	f := *e
	f.Severity = protocol.SeverityFatal
	if !f.Quiet {
		c.ec.Write(protocol.AppendErrorResponse(nil, &f))
	}
	c.closeQuietly()
}
