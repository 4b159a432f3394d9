package pooler

import (
	"fmt"
	"time"

	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// A client has one timer for all its limits. It is armed when a limit begins to
// count and not disarmed when that ends: when it fires, due looks which limits
// count now and when the next of them passes. So the timer is never later than
// a limit, and a request costs it a comparison.

// arm makes the timer fire at the given instant or earlier.
func (c *clientConn) arm(at int64) {
	if c.timerAt != 0 && c.timerAt <= at {
		return
	}
	if c.timer.F == nil {
		c.timer.F = c.timeUp
	}
	c.timerAt = at
	c.w.loop.Arm(&c.timer, at)
}

// armIn begins a limit; 0 is none.
func (c *clientConn) armIn(limit time.Duration) {
	if limit > 0 {
		c.arm(c.w.now() + int64(limit))
	}
}

// disarm takes the timer off the loop: the client ends or leaves it.
func (c *clientConn) disarm() {
	c.timerAt = 0
	c.w.loop.Forget(&c.timer)
}

// timeUp runs on the loop when the timer fires.
func (c *clientConn) timeUp(now int64) {
	defer c.contain()
	c.timerAt = 0
	switch {
	case c.dead:
	case c.login != nil:
		c.login.timeUp(now)
	default:
		if at := c.due(now); at > 0 && !c.dead {
			c.arm(at)
		}
	}
}

// due applies the limit that has passed, if one has, and returns the instant at
// which the next one does, 0 for none.
func (c *clientConn) due(now int64) (next int64) {
	cfg := c.w.p.config()
	passed := func(counts bool, since int64, limit time.Duration) bool {
		at := since + int64(limit)
		switch {
		case !counts || limit <= 0:
			return false
		case now >= at:
			return true
		case next == 0 || at < next:
			next = at
		}
		return false
	}
	c.watchStall(now)
	inTx := c.sess.IdleInTransaction()
	switch {
	case passed(c.sess.Waiting(), c.since, cfg.Pool.AcquireTimeout):
		c.acquireTimeout(cfg.Pool.AcquireTimeout)
	case passed(c.stallAt != 0, c.stallAt, cfg.Client.StallTimeout):
		c.sess.Kill(session.EndStalled, &protocol.Error{
			Code:    "57014",
			Message: fmt.Sprintf("the client took no data for %v", cfg.Client.StallTimeout),
			Hint:    "The limit is --client-stall-timeout.",
		})
	case passed(c.restAt != 0 && inTx, c.restAt, cfg.Pool.ReservedInactivityTimeout):
		c.sess.Kill(session.EndIdleTransaction, &protocol.Error{
			Code:    "25P03",
			Message: "terminating connection due to idle-in-transaction timeout",
			Detail:  fmt.Sprintf("The client was idle inside a transaction for %v.", cfg.Pool.ReservedInactivityTimeout),
			Hint:    "The limit is --connpool-user-reserved-inactivity-timeout.",
		})
	case passed(c.restAt != 0 && !inTx, c.restAt, cfg.Client.IdleTimeout):
		c.sess.Kill(session.EndIdle, &protocol.Error{
			Code:    "57P05",
			Message: "terminating connection due to idle-session timeout",
			Detail:  fmt.Sprintf("The client was idle for %v.", cfg.Client.IdleTimeout),
			Hint:    "The limit is --client-idle-timeout.",
		})
	}
	return next
}

func (c *clientConn) acquireTimeout(limit time.Duration) {
	if !c.route.target.arb.Expire(&c.place.waiter) {
		return // the grant is on its way
	}
	c.leaveQueue()
	s := c.route.target.arb.Stats()
	c.w.p.stats.acquireTimeouts.Add(1)
	c.sess.Refused(&protocol.Error{
		Code:    "53300",
		Message: fmt.Sprintf("no server connection within %v", limit),
		Detail:  fmt.Sprintf("code=DB_POOL_EXHAUSTED in_use=%d capacity=%d waiting=%d", s.InUse(), s.Effective, s.Waiting),
		Hint:    "Raise --connpool-global-capacity or --acquire-timeout, or lower the concurrency.",
	})
}

// watchStall begins the client's time anew if it has taken anything since it
// was last looked at.
func (c *clientConn) watchStall(now int64) {
	if c.stallAt == 0 {
		return
	}
	left := c.ec.Backlog()
	if left < c.stallLeft {
		c.stallAt = now
	}
	c.stallLeft = left
}

// rests notes that the client has come to rest, between transactions or idle
// inside one, where its idle limits begin to count.
func (c *clientConn) rests() {
	if c.restAt != 0 {
		return
	}
	switch {
	case c.sess.IdleInTransaction():
		c.restAt = c.w.now()
		c.armIn(c.w.p.config().Pool.ReservedInactivityTimeout)
	case c.sess.AtBoundary():
		c.restAt = c.w.now()
		c.armIn(c.w.p.config().Client.IdleTimeout)
	}
}
