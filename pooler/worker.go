package pooler

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/multipooler/multipooler/admin"
	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/eventloop"
)

type (
	arbiter  = connpool.Arbiter[*serverConn]
	poolConn = connpool.Conn[*serverConn]
	waiter   = connpool.Waiter[*serverConn]
	poolOp   = connpool.Op[*serverConn]
)

// tickPeriod is how often a loop lets the arbiters look for expired
// connections of that loop.
const tickPeriod = time.Second

// maxRemainder is what a loop keeps of an incomplete message; far above the
// pieces that sessions and logins wait for.
const maxRemainder = 1 << 20

// worker is one event loop with its clients. Everything but clients is for the
// loop's goroutine.
type worker struct {
	p        *Pooler
	loop     *eventloop.Loop
	tick     eventloop.Timer
	ops      []poolOp // scratch
	later    []poolOp // what came while others were executed
	running  bool     // run is at it
	surplus  int      // clients that should move to other loops
	delivery delivery // to a server connection, while it runs

	acquire admin.LatencyRecorder // waits for server connections

	places []*place // free ones

	first *clientConn  // list of the clients on this loop
	n     atomic.Int64 // how many
}

func newWorker(p *Pooler, id int) (*worker, error) {
	loop, err := eventloop.New(id, eventloop.Config{
		ReadBuffer: int(p.config().ReadBuffer), HighWater: p.highWater, LowWater: p.highWater / 4,
		MaxRemainder: max(int(p.config().ReadBuffer), maxRemainder),
		DirectWait:   runtime.GOMAXPROCS(0) > p.loops,
	})
	if err != nil {
		return nil, err
	}
	w := &worker{p: p, loop: loop}
	w.tick.F = w.ticked
	return w, nil
}

// task is a function as a message to a loop; for everything that is rare.
type task func(l *eventloop.Loop)

// Run implements eventloop.Task.
func (t task) Run(l *eventloop.Loop) { t(l) }

func (w *worker) id() int    { return w.loop.ID() }
func (w *worker) now() int64 { return w.loop.Now() }

func (w *worker) start() { w.loop.Arm(&w.tick, w.loop.Now()+int64(tickPeriod)) }

// ticked runs on the loop once per tickPeriod, earlier when a failed dial is to
// be repeated.
func (w *worker) ticked(now int64) {
	next := now + int64(tickPeriod)
	for _, t := range w.p.targets {
		ops := w.takeOps()
		t.arb.Tick(w.id(), now, &ops)
		w.run(ops)
		if at, ok := t.arb.RetryAt(); ok && at < next {
			next = max(at, now+int64(time.Millisecond))
		}
	}
	w.loop.Arm(&w.tick, next)
}

// retrySoon makes sure that a tick comes when the arbiter wants to dial again.
func (w *worker) retrySoon(t *target) {
	if at, ok := t.arb.RetryAt(); ok {
		w.loop.Arm(&w.tick, max(min(at, w.now()+int64(tickPeriod)), w.now()+int64(time.Millisecond)))
	}
}

// takeOps lends the scratch slice; run gives it back. Nested use allocates.
func (w *worker) takeOps() []poolOp {
	ops := w.ops
	w.ops = nil
	return ops[:0]
}

// run executes what an arbiter has decided. What comes of that waits for its
// turn: a grant may lead to the next one, through as many clients as wait.
func (w *worker) run(ops []poolOp) {
	if w.running {
		w.later = append(w.later, ops...)
	} else {
		w.running = true
		for i := range ops {
			w.execute(ops[i])
		}
		for i := 0; i < len(w.later); i++ {
			w.execute(w.later[i])
		}
		clear(w.later)
		w.later = w.later[:0]
		w.running = false
	}
	clear(ops)
	if w.ops == nil {
		w.ops = ops[:0]
	}
}

func (w *worker) execute(op poolOp) {
	switch op.Kind {
	case connpool.OpDial:
		w.p.dial(w, op)
	case connpool.OpGrant:
		w.grant(op)
	case connpool.OpClose:
		w.closeOp(op)
	case connpool.OpFail:
		w.failOp(op)
	}
}

// grant hands a server connection to the client that has waited for it, here
// or on its own loop.
func (w *worker) grant(op poolOp) {
	pl := op.Waiter.Owner.(*place)
	sc := op.Conn.Resource()
	if op.Loop == w.id() {
		pl.c.granted(sc)
		return
	}
	sc.ec.GiveTo(op.Loop)
	pl.sc, pl.to = sc, w.p.workers[op.Loop]
	if !pl.to.loop.Post(pl) {
		w.lost(sc)
	}
}

// closeOp terminates an idle or just released server connection for which the
// arbiter has other plans.
func (w *worker) closeOp(op poolOp) {
	sc := op.Conn.Resource()
	if op.Loop != w.id() {
		to := w.p.workers[op.Loop]
		if !to.loop.Post(task(func(*eventloop.Loop) { to.closeClaimed(sc) })) {
			w.lost(sc)
		}
		return
	}
	w.closeClaimed(sc)
}

func (w *worker) closeClaimed(sc *serverConn) {
	if err := w.loop.Adopt(sc.ec); err != nil {
		w.lost(sc)
		return
	}
	sc.w = w
	defer sc.contain()
	sc.terminate(closeRetired)
}

func (w *worker) failOp(op poolOp) {
	c := op.Waiter.Owner.(*place).c
	if op.Loop == w.id() {
		c.refused(op.Err)
		return
	}
	w.p.workers[op.Loop].loop.Post(task(func(*eventloop.Loop) { c.refused(op.Err) }))
}

// gone reports the end of a server connection to its arbiter.
func (w *worker) gone(sc *serverConn) {
	ops := w.takeOps()
	sc.target.arb.Gone(sc.pc, w.now(), &ops)
	w.run(ops)
}

// lost ends a claimed server connection that no loop can adopt: that loop, or
// the process, is about to end.
func (w *worker) lost(sc *serverConn) {
	sc.ec.Discard()
	sc.ended, sc.reason = true, closeShutdown
	w.p.serverClosed(sc)
	w.gone(sc)
}

// put gives a clean server connection back.
func (w *worker) put(sc *serverConn) {
	w.loop.Flush()
	ops := w.takeOps()
	sc.target.arb.Put(sc.pc, w.now(), &ops)
	w.run(ops)
}

func (w *worker) add(c *clientConn) {
	c.next = w.first
	if w.first != nil {
		w.first.prev = c
	}
	w.first, c.prev = c, nil
	c.w = w
	c.home.Store(w)
	w.n.Add(1)
}

func (w *worker) remove(c *clientConn) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		w.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	w.n.Add(-1)
}
