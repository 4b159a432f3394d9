package oracle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// errAbandoned is returned by operations that end their own connection.
var errAbandoned = errors.New("connection abandoned on purpose")

// fault that is injected into an operation from outside.
type fault int

const (
	noFault fault = iota
	cancelFault
	timeoutFault
	cutFault
	resetFault
	faultKinds
)

// faultWithin is how late after the start of an operation a fault may come.
// Each magnitude from a microsecond on is as likely: most operations are short.
const faultWithin = 20 * time.Millisecond

// client is one session after the other, each with what it believes to be its state.
type client struct {
	run  *run
	id   int
	rng  *rand.Rand
	conn *pgconn.PgConn
	s    state

	op       string // name of the operation under way
	verified int64  // bytes, in this operation
	injected fault  // into the operation under way
	// lateCancel: the operation before this one was cancelled. PostgreSQL's
	// cancel is a signal: one that came too late may still hit the same
	// session's next statement. It must never hit anybody else's.
	lateCancel bool
	// cut: the socket was closed beside the operation. doubt: an operation that
	// changes state did not finish. Either way this session is of no more use.
	cut   atomic.Bool
	doubt bool

	// The connection's callbacks run inside its own reads: on this goroutine,
	// except that pgconn cleans a broken connection up in the background.
	mu    sync.Mutex
	heard []heard
}

// heard is a notice or notification as it came.
type heard struct {
	kind, code, text string
}

func newClient(r *run, id int) *client {
	return &client{run: r, id: id, rng: rand.New(rand.NewPCG(r.cfg.Seed, uint64(id)))}
}

// work does the client's steps. It owns the goroutine it is called on.
func (c *client) work(ctx context.Context) {
	ops := operations(c.run.cfg.NoState)
	defer c.hangUp()
	for step := 0; step < c.run.cfg.Steps && ctx.Err() == nil; step++ {
		if c.conn == nil && !c.connect(ctx) {
			return
		}
		c.step(ctx, ops.pick(c.rng))
	}
}

// connect retries while the server is allowed to be away.
func (c *client) connect(ctx context.Context) bool {
	cfg := c.run.conn.Copy()
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		c.hear(heard{"notice", n.Code, n.Message})
	}
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		c.hear(heard{"notification", n.Channel, n.Payload})
	}
	deadline := time.Now().Add(c.run.cfg.Hang)
	for {
		timed, stop := context.WithTimeout(ctx, c.run.cfg.Hang)
		conn, err := pgconn.ConnectConfig(timed, cfg)
		stop()
		switch {
		case err == nil:
			c.run.event("connects")
			c.conn, c.s, c.lateCancel, c.doubt = conn, state{}, false, false
			c.cut.Store(false)
			c.mu.Lock()
			c.heard = nil
			c.mu.Unlock()
			return true
		case ctx.Err() != nil:
			return false
		case !c.expected(err) || time.Now().After(deadline):
			c.violate("connect: %v", err)
			return false
		}
		c.run.event("connect refused")
		wait(ctx, time.Duration(1+c.rng.IntN(50))*time.Millisecond)
	}
}

func (c *client) hear(h heard) {
	c.mu.Lock()
	c.heard = append(c.heard, h)
	c.mu.Unlock()
}

// step runs one operation with at most one fault and judges its end.
func (c *client) step(ctx context.Context, op operation) {
	c.op, c.verified, c.injected = op.name, 0, noFault
	if c.rng.IntN(100) < c.run.cfg.FaultPercent {
		c.injected = noFault + 1 + fault(c.rng.IntN(int(faultKinds)-1))
	}
	err := c.withFault(ctx, op)
	c.checkHeard()
	if ctx.Err() != nil {
		c.hangUp()
		return
	}
	if err == nil {
		c.run.done(op.name, c.verified)
	} else {
		c.doubt = op.changesState || errors.Is(err, errAbandoned)
		c.judge(err)
	}
	c.lateCancel = c.injected == cancelFault
	c.settle(ctx)
}

// withFault runs op while the fault, if any, happens beside it, and returns
// when both are over.
func (c *client) withFault(ctx context.Context, op operation) error {
	timed, stop := context.WithTimeoutCause(ctx, c.run.cfg.Hang, fmt.Errorf("no reply within %s", c.run.cfg.Hang))
	defer stop()
	delay := time.Duration(1+logUniform(c.rng, int(faultWithin/time.Microsecond))) * time.Microsecond
	conn := c.conn
	var over sync.WaitGroup
	defer over.Wait()
	finished := make(chan struct{})
	defer close(finished)
	beside := func(do func()) {
		over.Go(func() {
			select {
			case <-time.After(delay):
				do()
			case <-finished:
			}
		})
	}
	switch c.injected {
	case timeoutFault:
		timed, stop = context.WithTimeout(timed, delay)
		defer stop()
	case cancelFault:
		beside(func() { _ = conn.CancelRequest(ctx) })
	case cutFault, resetFault:
		reset := c.injected == resetFault
		beside(func() {
			c.cut.Store(true)
			abandon(conn, reset)
		})
	}
	err := op.do(c, timed)
	if err != nil && ctx.Err() == nil && c.injected != timeoutFault && timed.Err() != nil {
		return fmt.Errorf("hang: %w", context.Cause(timed))
	}
	return err
}

// judge decides whether the error that ended an operation was ours to cause.
func (c *client) judge(err error) {
	code := sqlState(err)
	lost := code == "" && (c.conn.IsClosed() || c.cut.Load())
	switch {
	case errors.Is(err, errAbandoned):
		c.run.event("abandoned")
	case code == "57014" && c.injected == cancelFault:
		c.run.event("cancelled")
	case code == "57014" && c.lateCancel:
		c.run.event("cancelled late")
	case c.injected == timeoutFault && (lost || code == "57014" || pgconn.Timeout(err)):
		c.doubt = true
		c.run.event("timed out")
	case (c.injected == cutFault || c.injected == resetFault) && lost:
		c.run.event("cut")
	case code == "57014":
		c.violate("cancelled by somebody else: %v", err)
	case c.expected(err):
		c.run.event("disturbed or refused")
	default:
		c.violate("%v", err)
	}
}

// expected errors are those that the configuration allows at any moment.
func (c *client) expected(err error) bool {
	code := sqlState(err)
	if code == "53300" {
		return c.run.cfg.AllowRefused
	}
	if c.run.cfg.Disturb == nil {
		return false
	}
	var op *net.OpError
	return code == "57P01" || code == "57P02" || code == "57P03" || strings.HasPrefix(code, "08") ||
		(code == "" && (errors.As(err, &op) || c.conn == nil || c.conn.IsClosed()))
}

// settle brings the session to rest before the next operation: outside a
// transaction, or closed.
func (c *client) settle(ctx context.Context) {
	if c.conn == nil {
		return
	}
	if c.conn.IsClosed() || c.cut.Load() || c.doubt {
		c.hangUp()
		return
	}
	if c.conn.TxStatus() == 'I' {
		return
	}
	timed, stop := context.WithTimeout(ctx, c.run.cfg.Hang)
	defer stop()
	if _, err := c.conn.Exec(timed, "rollback").ReadAll(); err != nil {
		// A cancel that came late may hit the ROLLBACK itself.
		if sqlState(err) != "57014" || !c.lateCancel {
			c.op = "rollback"
			c.judge(err)
		}
		c.hangUp()
	}
}

// hangUp ends the session and everything it believed.
func (c *client) hangUp() {
	if c.conn == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	_ = c.conn.Close(ctx)
	select {
	case <-c.conn.CleanupDone():
	case <-ctx.Done():
	}
	c.conn, c.s = nil, state{}
}

// abandon breaks the connection without a word, as a crashed client does.
func abandon(conn *pgconn.PgConn, reset bool) {
	raw := conn.Conn()
	if l, ok := raw.(interface{ SetLinger(sec int) error }); ok && reset {
		_ = l.SetLinger(0)
	}
	_ = raw.Close()
}

// checkHeard verifies that whatever came unasked was this client's own.
func (c *client) checkHeard() {
	c.mu.Lock()
	all := c.heard
	c.heard = nil
	c.mu.Unlock()
	for _, h := range all {
		switch {
		case strings.HasPrefix(h.code, "57P") && c.run.cfg.Disturb != nil:
		case h.kind == "notification" && h.code != c.s.channel:
			c.violate("notification on %q, which this session does not listen to: %q", h.code, h.text)
		case owner([]byte(h.text)) != fmt.Sprint(c.id):
			c.violate("%s %s %q is not ours", h.kind, h.code, h.text)
		}
	}
}

func (c *client) violate(format string, args ...any) {
	c.run.violation("client %d, %s: %s", c.id, c.op, fmt.Sprintf(format, args...))
}

// same verifies one value.
func (c *client) same(what string, got, want []byte) {
	if d := difference(got, want); d != "" {
		c.violate("%s: %s", what, d)
		return
	}
	c.verified += int64(len(got))
}

// ghost notes a marker whose rows must never be seen by anyone.
func (c *client) ghost(marker string) {
	c.run.mu.Lock()
	c.run.ghosts = append(c.run.ghosts, marker)
	c.run.mu.Unlock()
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}
