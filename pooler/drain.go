package pooler

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

const (
	// spreadIdle is over how long the idle clients of a drain are sent away, so
	// that they do not all reconnect elsewhere in the same instant.
	spreadIdle = 2 * time.Second
	// spreadFrom is how many clients on a loop make spreading worth it.
	spreadFrom  = 100
	spreadSteps = 20
	// serverFarewell bounds the wait for the servers' EOFs at the end.
	serverFarewell = 5 * time.Second
)

func shutdownError() *protocol.Error {
	return &protocol.Error{
		Severity: protocol.SeverityFatal, Code: "57P01",
		Message: "terminating connection due to administrator command", Detail: "multipooler is shutting down.",
	}
}

// emptied signals that a set has become empty after somebody began to wait.
type emptied struct {
	once sync.Once
	ch   chan struct{}
}

func newEmptied() *emptied { return &emptied{ch: make(chan struct{})} }

func (e *emptied) signal() { e.once.Do(func() { close(e.ch) }) }

// drain lets the clients go: none is taken any more, idle ones are sent away,
// the others at their next transaction boundary. It returns when all have gone,
// the drain timeout has passed, or hard has ended.
func (p *Pooler) drain(hard context.Context, stopAccepting func()) {
	cfg := p.config().Drain
	p.log.Info("draining", zap.Int64("clients", p.clients.Load()), zap.Duration("delay", cfg.Delay), zap.Duration("timeout", cfg.Timeout))
	p.state.SetDraining()
	wait(hard, cfg.Delay, nil)
	stopAccepting()
	p.draining.Store(true)
	for _, w := range p.workers {
		w.loop.Post(task(func(*eventloop.Loop) { w.drainClients() }))
	}
	p.checkEmpty()
	wait(hard, cfg.Timeout, p.noClients.ch)
}

// wait returns after d, or earlier when ctx ends or done is closed.
func wait(ctx context.Context, d time.Duration, done <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-done:
	}
}

// checkEmpty looks whether the last client of a drain has gone.
func (p *Pooler) checkEmpty() {
	if p.draining.Load() && p.clients.Load() == 0 && p.loggingIn.Load() == 0 {
		p.noClients.signal()
	}
}

// drainClients sends the clients of this loop away that are at a boundary; the
// rest follow as they come to one.
func (w *worker) drainClients() {
	all := w.all()
	n := len(all)
	if n >= spreadFrom {
		n = (n + spreadSteps - 1) / spreadSteps
	}
	w.drainSome(all, n)
}

// all is the clients of the loop. What is done to one may end others, so nobody
// walks over the list itself meanwhile; see still.
func (w *worker) all() []*clientConn {
	all := make([]*clientConn, 0, max(w.n.Load(), 0))
	for c := w.first; c != nil; c = c.next {
		all = append(all, c)
	}
	return all
}

// still tells whether c, which was the loop's, still is, and lives.
func (w *worker) still(c *clientConn) bool { return c.home.Load() == w && !c.dead }

func (w *worker) drainSome(rest []*clientConn, n int) {
	for i, c := range rest {
		if i == n {
			rest := rest[n:]
			t := &eventloop.Timer{}
			t.F = func(int64) { w.drainSome(rest, n) }
			w.loop.Arm(t, w.now()+int64(spreadIdle/spreadSteps))
			return
		}
		if w.still(c) {
			c.drain()
		}
	}
}

// drain sends the client away if it is at a boundary.
func (c *clientConn) drain() {
	defer c.contain()
	switch {
	case c.dead:
	case c.login != nil:
		if !c.login.working && !c.login.away { // else when that is over
			c.login.refuse(shutdownError())
		}
	case c.sess.AtBoundary():
		c.sess.Kill(session.EndShutdown, shutdownError())
	}
}

// cutAll ends every session that is left.
func (p *Pooler) cutAll() {
	var done sync.WaitGroup
	for _, w := range p.workers {
		done.Add(1)
		posted := w.loop.Post(task(func(*eventloop.Loop) {
			defer done.Done()
			for _, c := range w.all() {
				if w.still(c) {
					c.cut()
				}
			}
		}))
		if !posted {
			done.Done()
		}
	}
	done.Wait()
}

// cut ends the client whatever it is doing.
func (c *clientConn) cut() {
	defer c.contain()
	switch {
	case c.login == nil:
	case c.login.cancelling:
		c.closeQuietly()
		return
	default:
		c.login.refuse(shutdownError())
		return
	}
	c.w.p.cut.Add(1)
	sc := c.sc
	busy := sc != nil && sc.srv.Busy()
	c.sess.Kill(session.EndShutdown, shutdownError())
	if busy && !sc.ended {
		// 57P01 says that the statement was not done, and the process that
		// takes over must not find the slots of this one in use.
		sc.sendCancel()
	}
}

// awaitServers closes the pools and waits, within bounds, for the servers' EOFs.
func (p *Pooler) awaitServers() {
	w := p.workers[0]
	w.loop.Post(task(func(*eventloop.Loop) {
		for _, t := range p.targets {
			ops := w.takeOps()
			t.arb.Close(&ops)
			w.run(ops)
		}
		p.servers.closing()
	}))
	wait(context.Background(), serverFarewell, p.servers.empty.ch)
}
