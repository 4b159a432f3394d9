package pooler

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
)

// Cancel: each session has a key of its own. A request is passed on only while
// a statement of that very session is running, with the key of the server
// connection that runs it; and that connection is not given to anybody else
// before the cancel connection has seen the server's EOF, by when PostgreSQL has
// sent its signal. So a late cancel cannot hit another client's statement.

const (
	shortKey = 4  // protocol 3.0
	longKey  = 32 // protocol 3.2, as PostgreSQL 18
)

// cancelResult is the label of a metric.
type cancelResult uint8

const (
	cancelSent    cancelResult = iota // passed on, and the server has taken it
	cancelWaiter                      // the client was queued: it left the queue
	cancelIdle                        // nothing was running
	cancelUnknown                     // no session has this key
	cancelFailed                      // the server could not be reached or did not answer
	cancelRefused                     // too many at once
	numCancelResults
)

var cancelResultNames = [numCancelResults]string{"sent", "dequeued", "idle", "unknown_key", "failed", "too_many"}

// cancelRegistry finds the session of a cancel key. Safe for concurrent use.
type cancelRegistry struct {
	mu   sync.Mutex
	byID map[uint32]*clientConn
}

// issue makes a key for c.
func (r *cancelRegistry) issue(c *clientConn, minor int) (pid uint32, key []byte) {
	n := shortKey
	if minor >= 2 {
		n = longKey
	}
	buf := make([]byte, 4+n)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = make(map[uint32]*clientConn)
	}
	for {
		_, _ = rand.Read(buf) // never fails
		// Positive as a signed number, like a process id.
		pid = binary.BigEndian.Uint32(buf) &^ (1 << 31)
		if _, taken := r.byID[pid]; pid != 0 && !taken {
			break
		}
	}
	key = buf[4:]
	c.cancelPID, c.cancelKey = pid, key
	r.byID[pid] = c
	return pid, key
}

func (r *cancelRegistry) revoke(pid uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, pid)
}

func (r *cancelRegistry) find(pid uint32, key []byte) *clientConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.byID[pid]
	if !ok || subtle.ConstantTimeCompare(c.cancelKey, key) != 1 {
		return nil
	}
	return c
}

// cancelRequested handles a CancelRequest; like PostgreSQL it never answers. done
// is called once, on any goroutine, when the request can have no effect any
// more: until then its sender, who waits for EOF before the next statement,
// must not get it, or the next statement would be hit.
func (p *Pooler) cancelRequested(pid uint32, key []byte, done func()) {
	c := p.cancels.find(pid, key)
	if c == nil {
		p.stats.cancels[cancelUnknown].Add(1)
		done()
		return
	}
	p.onLoopOf(c, func() { c.cancelNow(done) })
}

// onLoopOf runs f on the loop that owns c, also when c moves meanwhile.
func (p *Pooler) onLoopOf(c *clientConn, f func()) {
	w := c.home.Load()
	if w == nil { // on its way between two loops
		w = p.workers[0]
	}
	w.loop.Post(task(func(*eventloop.Loop) {
		if c.home.Load() != w {
			p.onLoopOf(c, f)
			return
		}
		defer c.contain()
		f()
	}))
}

// cancelNow cancels what the client waits for.
func (c *clientConn) cancelNow(done func()) {
	p := c.w.p
	switch {
	case c.dead || c.sess == nil:
	case c.sess.CancelWaiting():
		p.stats.cancels[cancelWaiter].Add(1)
	case c.sc == nil || !c.sc.srv.Busy():
		p.stats.cancels[cancelIdle].Add(1)
	default:
		p.cancelServer(c.sc, done)
		return
	}
	done()
}

// cancelServer sends a CancelRequest for what sc runs, from a goroutine; sc is
// not reused before it has come to its end. done is called there, or at once
// when nothing is sent: false.
func (p *Pooler) cancelServer(sc *serverConn, done func()) bool {
	if sc.cancels >= p.config().Cancel.Concurrency || !p.cancelSlots.tryAcquire() {
		p.stats.cancels[cancelRefused].Add(1)
		p.log.Warn("cancel request dropped: too many at once", zap.Inline(sc), zap.String("knob", "--cancel-concurrency"))
		done()
		return false
	}
	p.startCancel(sc, func() {}, done)
	return true
}

// cancelOwn cancels what sc runs on multipooler's own account. It waits for its
// turn instead of being dropped; there is one at most for each server connection.
func (p *Pooler) cancelOwn(sc *serverConn) { p.startCancel(sc, p.cancelSlots.acquire, func() {}) }

// startCancel runs a cancel in a goroutine once enter has returned, with a place
// among the concurrent ones.
func (p *Pooler) startCancel(sc *serverConn, enter, done func()) {
	sc.cancels++
	w := sc.w
	p.stats.cancelling.Add(1)
	p.goes.Go(func() {
		enter()
		err := p.sendCancel(sc.target, sc.pid, sc.key)
		p.cancelSlots.release()
		p.stats.cancelling.Add(-1)
		done()
		w.loop.Post(task(func(*eventloop.Loop) { sc.cancelEnded(err) }))
	})
}

// cancelEnded is back on the loop of sc, which cannot have moved: it is neither
// parked nor given away while a cancel is under way.
func (sc *serverConn) cancelEnded(err error) {
	defer sc.contain()
	sc.cancels--
	p := sc.w.p
	if err != nil {
		p.stats.cancels[cancelFailed].Add(1)
		p.log.Warn("cancel request failed", zap.Inline(sc), zap.Error(err))
		// Whether the server will still act on it is unknown.
		sc.srv.Distrust("cancel request without an answer")
	} else {
		p.stats.cancels[cancelSent].Add(1)
	}
	if sc.ended || sc.cancels > 0 {
		return
	}
	if sc.held {
		sc.clean()
	}
}

// sendCancel dials, sends the request and waits for the server's EOF.
func (p *Pooler) sendCancel(t *target, pid uint32, key []byte) error {
	ctx, cancel := context.WithTimeout(p.background, p.config().Cancel.Timeout)
	defer cancel()
	conn, err := p.connect(ctx, t)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := conn.Write(protocol.AppendCancelRequest(nil, pid, key)); err != nil {
		return err
	}
	var b [1]byte
	for {
		_, err := conn.Read(b[:])
		switch {
		case errors.Is(err, io.EOF), err != nil && isReset(err):
			return nil
		case err != nil:
			return err
		}
	}
}

// semaphore bounds how many do something at once.
type semaphore chan struct{}

func newSemaphore(n int) semaphore { return make(semaphore, max(n, 1)) }
func (s semaphore) acquire()       { s <- struct{}{} }
func (s semaphore) release()       { <-s }
func (s semaphore) tryAcquire() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

// quarantine is how long a failed dial waits for the server to forget it.
const dialQuarantine = 5 * time.Second
