package pooler

import (
	"fmt"
	"time"

	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// A client has one timer for all its limits, of which at most one counts at a
// time. It is armed when a limit begins to count and never disarmed: when it
// fires, due looks which limit counts now. (Arming later is a store.)

func (c *clientConn) arm(at int64) {
	if c.timer.F == nil {
		c.timer.F = c.timeUp
	}
	c.w.loop.Arm(&c.timer, at)
}

// timeUp runs on the loop when the timer fires.
func (c *clientConn) timeUp(now int64) {
	if c.dead {
		return
	}
	if c.login != nil {
		c.login.timeUp(now)
		return
	}
	if at := c.due(now); at > 0 && !c.dead {
		c.arm(at)
	}
}

// due applies the limits that have passed and returns the instant of the next
// one, 0 for none.
func (c *clientConn) due(now int64) int64 {
	cfg := c.w.p.config()
	switch {
	case c.sess.Waiting():
		at := c.since + int64(cfg.Pool.AcquireTimeout)
		switch {
		case cfg.Pool.AcquireTimeout <= 0:
			return 0
		case now < at:
			return at
		}
		c.acquireTimeout(cfg.Pool.AcquireTimeout)
	case c.stallAt != 0:
		return c.stalled(now, cfg.Client.StallTimeout)
	case c.sess.IdleInTransaction():
		limit := cfg.Pool.ReservedInactivityTimeout
		at := c.since + int64(limit)
		switch {
		case limit <= 0:
			return 0
		case now < at:
			return at
		}
		c.sess.Kill(session.EndIdleTransaction, &protocol.Error{
			Code:    "25P03",
			Message: "terminating connection due to idle-in-transaction timeout",
			Detail:  fmt.Sprintf("The client was idle inside a transaction for %v.", limit),
			Hint:    "The limit is --connpool-user-reserved-inactivity-timeout.",
		})
	case c.sess.Idle() && cfg.Client.IdleTimeout > 0:
		at := c.since + int64(cfg.Client.IdleTimeout)
		if now < at {
			return at
		}
		c.sess.Kill(session.EndIdle, &protocol.Error{
			Code:    "57P05",
			Message: "terminating connection due to idle-session timeout",
			Detail:  fmt.Sprintf("The client was idle for %v.", cfg.Client.IdleTimeout),
			Hint:    "The limit is --client-idle-timeout.",
		})
	}
	return 0
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

// stalled cuts a client that takes no byte of what waits for it.
func (c *clientConn) stalled(now int64, limit time.Duration) int64 {
	left := c.ec.Backlog()
	if left < c.stallLeft {
		c.stallAt = now
	}
	c.stallLeft = left
	at := c.stallAt + int64(limit)
	if limit <= 0 {
		return 0
	}
	if now < at {
		return at
	}
	c.sess.Kill(session.EndStalled, &protocol.Error{
		Code:    "57014",
		Message: fmt.Sprintf("the client took no data for %v", limit),
		Hint:    "The limit is --client-stall-timeout.",
	})
	return 0
}
