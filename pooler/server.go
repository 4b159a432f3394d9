package pooler

import (
	"errors"
	"io"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// closeReason is why a server connection was closed: the label of a metric.
type closeReason uint8

const (
	closeRetired  closeReason = iota // the pool has other plans: lifetime, idle time, capacity, another user
	closeServer                      // the server ended it
	closeError                       // it broke, or broke the protocol
	closeUnclean                     // its state could not be settled
	closeShutdown                    // multipooler ends
	numCloseReasons
)

var closeReasonNames = [numCloseReasons]string{"retired", "server", "error", "unclean", "shutdown"}

// serverConn is one server connection after its login. It implements
// eventloop.Handler and connpool.Resource. Between a successful claim and the
// next park or hand-over its fields belong to the loop of w.
type serverConn struct {
	w      *worker
	ec     *eventloop.Conn
	srv    *session.Server
	pc     *poolConn
	target *target
	client *clientConn // who has borrowed it

	pid    uint32
	key    []byte          // of CancelRequest
	told   *session.Params // what it reported when it was last given back
	opened int64
	timer  eventloop.Timer

	cancels   int // cancel requests that have not seen their EOF
	settling  bool
	draining  bool // told to go; Gone at its end
	ended     bool // the socket has ended
	held      bool // clean, but waits for its cancels
	overdue   bool // drains for longer than the quarantine allows
	cancelled bool // draining: a cancel was sent
	reason    closeReason
}

// Park implements connpool.Resource.
func (sc *serverConn) Park() { sc.ec.Park() }

// TryClaim implements connpool.Resource.
func (sc *serverConn) TryClaim(loop int) bool { return sc.ec.TryClaim(loop) }

// Loop implements connpool.Resource.
func (sc *serverConn) Loop() int { return sc.w.id() }

// Received implements eventloop.Handler. The connection may have changed hands
// before it returns: nothing of sc is touched after that.
func (sc *serverConn) Received(_ *eventloop.Conn, p []byte) int {
	w := sc.w
	sc.arrived(p)
	if w.delivery.over() {
		return 0
	}
	return w.delivery.bytes
}

// arrived gives p to whom it is for.
func (sc *serverConn) arrived(p []byte) {
	w := sc.w
	// A session gives the connection up only when it has taken everything.
	w.delivery = delivery{sc, len(p), len(p)}
	c := sc.client
	if c == nil {
		defer sc.contain()
		w.delivery.bytes = sc.alone(p)
		return
	}
	defer c.contain()
	w.delivery.bytes = c.sess.FromServer(p)
	c.touched() // a drain may end the session here, which gives sc back as well
	if w.surplus > 0 {
		c.moveIfSurplus()
	}
}

// delivery is the one that runs on a loop: clean settles its bytes before it
// gives sc away, because from then on sc is somebody else's, here or on another
// loop. Therefore it is kept with the loop and not in sc.
type delivery struct {
	sc    *serverConn // nil = none, or it is settled
	size  int
	bytes int // of them taken
}

// over ends the delivery and tells whether its bytes have been settled.
func (d *delivery) over() bool {
	settled := d.sc == nil
	d.sc = nil
	return settled
}

// settle counts the bytes of the delivery as taken, if it is sc's. False: sc
// keeps the beginning of a message.
func (d *delivery) settle(sc *serverConn) bool {
	if d.sc != sc {
		return sc.ec.Kept() == 0
	}
	sc.ec.Consume(d.bytes)
	d.sc = nil
	return d.bytes == d.size
}

// alone takes bytes while nobody has borrowed the connection: it is settling,
// draining, held for a cancel, or idle and claimed by its loop because of this
// very event.
func (sc *serverConn) alone(p []byte) int {
	before := sc.srv.Params()
	n, err := sc.srv.Feed(p)
	if !sc.settling && !sc.draining && !sc.srv.Params().SameButName(before) {
		sc.target.forgetParams(sc.pc.Pool().Handle())
	}
	switch {
	case sc.draining:
		sc.cancelIfFlooding()
		if err != nil {
			return len(p) // only its end matters now
		}
	case err != nil:
		sc.terminate(closeError)
		return len(p)
	case sc.settling:
		if n == len(p) {
			sc.settle()
		}
	case sc.held:
	case sc.srv.Doubt() != "":
		sc.terminate(closeServer)
		return len(p)
	case !sc.srv.Reusable():
		sc.terminate(closeError) // rows that nobody has asked for, say
		return len(p)
	default:
		sc.idleAgain(n)
	}
	return n
}

// idleAgain parks a connection again that its loop had claimed because of an
// event, a ParameterStatus for instance.
func (sc *serverConn) idleAgain(n int) {
	w := sc.w
	w.delivery.bytes = n
	w.delivery.settle(sc)
	ops := w.takeOps()
	sc.target.arb.Unclaimed(sc.pc, w.now(), &ops)
	w.run(ops)
}

// Drained implements eventloop.Handler: the server takes bytes again.
func (sc *serverConn) Drained(*eventloop.Conn) {
	if c := sc.client; c != nil {
		defer c.contain()
		c.flow()
	}
}

// Ended implements eventloop.Handler: PostgreSQL does not count this backend
// any more, its slot is free.
func (sc *serverConn) Ended(_ *eventloop.Conn, err error) {
	sc.ended = true
	w := sc.w
	w.loop.Forget(&sc.timer)
	if !sc.draining {
		sc.reason = closeServer
		if !errors.Is(err, io.EOF) {
			sc.reason = closeError
		}
		if errors.Is(err, eventloop.ErrLoopStopped) {
			sc.reason = closeShutdown
		}
	}
	if c := sc.client; c != nil {
		defer c.contain()
		c.sess.ServerEnded(err) // releases with session.Close, which ends in bury
		c.touched()
		return
	}
	sc.bury()
}

// bury reports the end once it is known that the server is gone.
func (sc *serverConn) bury() {
	sc.w.p.serverClosed(sc)
	sc.w.gone(sc)
}

// release takes the connection back from its client.
func (sc *serverConn) release(how session.Disposal) {
	defer sc.contain()
	switch {
	case sc.ended:
		sc.bury()
	case how == session.Close:
		sc.terminate(closeUnclean)
	case how == session.Settle:
		sc.settle()
	default:
		sc.clean()
	}
}

// settle drives the connection back to a clean state without its client.
func (sc *serverConn) settle() {
	out, outcome := sc.srv.Settle(nil)
	if len(out) > 0 {
		sc.ec.Write(out)
	}
	switch outcome {
	case session.SettleDone:
		sc.settling = false
		sc.clean()
	case session.SettleClose:
		sc.settling = false
		sc.terminate(closeUnclean)
	case session.SettlePending:
		if !sc.settling {
			sc.settling = true
			sc.watch()
		}
	}
}

// clean gives the connection back, as soon as no cancel can hit its next user.
func (sc *serverConn) clean() {
	if sc.cancels > 0 {
		sc.held = true
		return
	}
	sc.held = false
	if !sc.srv.Reusable() || sc.ec.Backlog() > 0 {
		sc.terminate(closeUnclean)
		return
	}
	if !sc.w.delivery.settle(sc) {
		sc.terminate(closeUnclean)
		return
	}
	sc.w.loop.Forget(&sc.timer)
	if params := sc.srv.Params(); params != sc.told {
		sc.told = params
		sc.target.relearn(sc.pc.Pool().Handle(), sc.srv.Settings(), params)
	}
	sc.pc.SetSettings(connpool.SettingsID(sc.srv.Settings().ID()))
	sc.w.put(sc)
}

// terminate says goodbye and keeps the slot until the server's EOF.
func (sc *serverConn) terminate(why closeReason) {
	if sc.draining {
		return
	}
	sc.draining = true
	sc.held, sc.settling = false, false
	sc.reason = why
	w := sc.w
	if sc.pc.State() != connpool.Draining {
		sc.target.arb.Drain(sc.pc, w.now())
	}
	if !sc.srv.Torn() {
		sc.ec.Write(protocol.AppendTerminate(nil))
	}
	sc.ec.CloseWrite()
	sc.ec.ResumeRead()
	sc.watch()
	if sc.srv.Abandoned() {
		sc.sendCancel()
	}
}

// watch bounds settling and draining: after the quarantine the running
// statement is cancelled, after another the connection is cut.
func (sc *serverConn) watch() {
	if sc.timer.F == nil {
		sc.timer.F = sc.timeUp
	}
	sc.w.loop.Arm(&sc.timer, sc.w.now()+int64(sc.w.p.config().Server.QuarantineTimeout))
}

func (sc *serverConn) timeUp(int64) {
	defer sc.contain()
	log := sc.w.p.log
	switch {
	case sc.ended || !sc.draining && !sc.settling:
	case sc.settling:
		log.Info("statement of a client that is gone runs too long, ending its server connection", zap.Inline(sc))
		sc.terminate(closeUnclean)
		sc.sendCancel()
	case !sc.overdue:
		sc.overdue = true
		log.Warn("server connection does not end, cancelling its statement", zap.Inline(sc))
		sc.sendCancel()
		sc.watch()
	default:
		log.Error("server connection did not end within the quarantine, cutting it; its backend may go on for a while", zap.Inline(sc))
		sc.ended = true
		sc.ec.Close()
		sc.bury()
	}
}

// cancelIfFlooding cancels a statement that goes on sending to a client that is
// gone: PostgreSQL itself would have died of the broken connection.
func (sc *serverConn) cancelIfFlooding() {
	if !sc.cancelled && sc.srv.Flooding() {
		sc.sendCancel()
	}
}

func (sc *serverConn) sendCancel() {
	if !sc.cancelled {
		sc.cancelled = true
		sc.w.p.cancelOwn(sc)
	}
}
