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
	since         int64 // of the last borrow, or of the wait
	restAt        int64 // when the client came to rest; 0 = it does not rest
	timerAt       int64 // when timer fires at the latest; 0 = not armed
	stallAt       int64 // when the client began to take nothing; 0 = it takes
	stallLeft     int   // its backlog then
	queries       uint64
	txs           uint64
	pinnedAt      int64
	peer          peer
	dead          bool
}

// Received implements eventloop.Handler.
func (c *clientConn) Received(_ *eventloop.Conn, p []byte) (n int) {
	defer c.contain()
	if c.login != nil {
		return c.login.received(p)
	}
	n = c.sess.FromClient(p)
	if c.dead {
		return len(p)
	}
	if n > 0 {
		c.route.bytesReceived.Add(uint64(n))
		c.restAt = 0
	}
	c.flow()
	c.rests()
	return n
}

// flow applies back-pressure: the server is not read while the client takes
// nothing, nor the client while the server takes nothing, nor a client that does
// not take its answers. Each end comes with a call of Drained.
func (c *clientConn) flow() {
	full := c.ec.Congested()
	switch {
	case !full:
		c.stallAt = 0
	case c.stallAt == 0:
		c.stallAt, c.stallLeft = c.w.now(), c.ec.Backlog()
		c.armIn(c.w.p.config().Client.StallTimeout)
	}
	if sc := c.sc; sc != nil {
		pause(sc.ec, full)
		full = full || sc.ec.Congested()
	}
	pause(c.ec, full)
}

func pause(ec *eventloop.Conn, on bool) {
	switch {
	case on:
		ec.PauseRead()
	case ec.Paused():
		ec.ResumeRead()
	}
}

// Drained implements eventloop.Handler: the client takes bytes again.
func (c *clientConn) Drained(*eventloop.Conn) {
	defer c.contain()
	if !c.dead && c.login == nil {
		c.flow()
	}
}

// Ended implements eventloop.Handler.
func (c *clientConn) Ended(_ *eventloop.Conn, err error) {
	defer c.contain()
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
	c.since = c.w.now()
	for {
		sv, dead, err := c.borrow(class)
		if !dead {
			return sv, err
		}
	}
}

// borrow is one try. dead: what it got has ended, or has something to say that
// its own loop has not come round to; it goes, and the next try gets another one.
func (c *clientConn) borrow(class connpool.Class) (sv *session.Server, dead bool, err error) {
	w := c.w
	ops := w.takeOps()
	pl := w.takePlace()
	pl.c = c // now: as soon as it is queued, any loop may read it
	pc, err := c.route.target.arb.Get(c.route.pool, &pl.waiter, connpool.Borrow{
		Class: class, Settings: connpool.SettingsID(c.sess.Settings().ID()), Loop: w.id(),
	}, c.since, &ops)
	if err == nil && pc == nil {
		c.place = pl
	} else {
		w.givePlace(pl)
	}
	w.run(ops)
	if err != nil {
		return nil, false, err
	}
	if pc == nil {
		c.armIn(w.p.config().Pool.AcquireTimeout)
		return nil, false, nil
	}
	sc := pc.Resource()
	foreign := sc.ec.Loop() != w.loop
	if err := w.loop.Adopt(sc.ec); err != nil {
		w.lost(sc)
		return nil, false, errServerGone
	}
	sc.w = w
	if foreign && sc.ec.Peek() {
		sc.terminate(closeServer)
		return nil, true, nil
	}
	w.acquire.Observe(0)
	c.lend(sc)
	return sc.srv, false, nil
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
	defer c.contain()
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
	defer c.contain()
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
	c.countPins(c.sess.Pins())
	sc.client = nil
	pause(sc.ec, false)
	c.flow()
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
	c.disarm()
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
	if !c.dead {
		c.countPins(c.sess.Pins())
	}
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
	if c.w.p.draining.Load() {
		if c.drain(); c.dead {
			return
		}
	}
	c.flow()
	c.rests()
}

// countPins keeps the gauge of pins by reason.
func (c *clientConn) countPins(now session.Pin) {
	now &^= session.PinMode
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
	lg := c.login
	lg.gone.Store(true)
	c.disarm()
	c.w.remove(c)
	if !lg.deriving { // else its work is counted until it is over
		c.w.p.loginOver()
	}
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
