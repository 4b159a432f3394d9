package pooler

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/admin"
	"github.com/multipooler/multipooler/certs"
	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// dial opens the server connection for which the arbiter has taken a slot.
func (p *Pooler) dial(w *worker, op poolOp) {
	pc := op.Conn
	key := pc.Pool().Key()
	t := p.target(key.Target)
	if op.Loop >= 0 && op.Loop < len(p.workers) {
		w = p.workers[op.Loop]
	}
	p.goes.Go(func() {
		began := time.Now()
		d, err := p.openContained(t, key)
		posted := w.loop.Post(task(func(*eventloop.Loop) {
			if err != nil {
				p.dialFailed(w, t, pc, err)
				return
			}
			p.dialed(w, t, pc, d, time.Since(began))
		}))
		if !posted && err == nil {
			closeFD(d.fd)
		}
	})
}

// dialed attaches a fresh server connection to its loop.
func (p *Pooler) dialed(w *worker, t *target, pc *poolConn, d *dialled, took time.Duration) {
	sc := &serverConn{w: w, pc: pc, target: t, pid: d.pid, key: d.key, opened: w.now(), srv: session.NewServer(d.params)}
	ec, err := w.loop.Attach(d.fd, sc, d.tls)
	if err != nil {
		closeFD(d.fd)
		p.dialFailed(w, t, pc, err)
		return
	}
	sc.ec = ec
	p.servers.add(sc)
	p.stats.connects[connectOK].Add(1)
	p.state.Clear("server_down:" + t.cfg.Name)
	p.log.Info("server connection opened", zap.Inline(sc), zap.Duration("took", took), zap.String("auth", d.method))
	ops := w.takeOps()
	t.arb.Dialed(pc, sc, w.now(), &ops)
	w.run(ops)
}

func (p *Pooler) dialFailed(w *worker, t *target, pc *poolConn, err error) {
	p.stats.connects[connectFailed].Add(1)
	key := pc.Pool().Key()
	p.log.Warn("server connection failed", zap.String("target", t.cfg.Name), zap.String("database", key.Database), zap.String("user", key.User), zap.Error(err), zap.NamedError("cause", causeOf(err)))
	if d, ok := errors.AsType[*DialError](err); ok && d.Said == nil {
		p.state.Set(admin.Condition{Name: "server_down:" + t.cfg.Name, Reason: "the last attempt to connect to the server of target " + t.cfg.Name + " found nobody; the log says why"})
	}
	ops := w.takeOps()
	t.arb.DialFailed(pc, err, w.now(), &ops)
	w.run(ops)
	w.retrySoon(t)
}

// dialled is a server connection after its login, off any loop.
type dialled struct {
	fd     int
	tls    *eventloop.TLS
	params *session.Params
	pid    uint32
	key    []byte
	method string
}

// DialError is a server connection that could not be made. The server's own
// words reach the client; addresses do not.
type DialError struct {
	Cause error
	Said  *protocol.Error // what the server answered; nil when it could not be asked
}

func (e *DialError) Error() string {
	switch {
	case e.Said == nil:
		return "the server cannot be reached"
	case e.Said.Code == "28000" && strings.Contains(e.Said.Message, "pg_hba.conf"):
		return "the server's pg_hba.conf does not let multipooler in as this user" // it names our address
	}
	return e.Said.Message
}

// causeOf is what the operator must know of a failed dial; nil when the error
// says it already. It is not unwrapped: a broken protocol on the server's side
// is a connection failure to the client, not a mistake of its own.
func causeOf(err error) error {
	if d, ok := errors.AsType[*DialError](err); ok && d.Said == nil {
		return d.Cause
	}
	return nil
}

// SQLState is the server's own, or connection_failure.
func (e *DialError) SQLState() string {
	if e.Said != nil {
		return e.Said.Code
	}
	return "08006"
}

// Detail is the server's own.
func (e *DialError) Detail() string {
	if e.Said != nil {
		return e.Said.Detail
	}
	return "code=DB_CONNECTION_FAILED"
}

// Hint is the server's own.
func (e *DialError) Hint() string {
	if e.Said != nil {
		return e.Said.Hint
	}
	return ""
}

// openContained is open with a panic turned into the failure of this dial.
func (p *Pooler) openContained(t *target, key connpool.Key) (d *dialled, err error) {
	defer func() {
		if r := recover(); r != nil {
			p.panicked(r, zap.String("target", t.cfg.Name))
			d, err = nil, &DialError{Cause: fmt.Errorf("bug: %v", r)}
		}
	}()
	return p.open(t, key)
}

// open connects and logs in. When the server may have made a backend of a
// failed attempt, open returns only after the server's EOF, because the slot is
// free then.
func (p *Pooler) open(t *target, key connpool.Key) (*dialled, error) {
	ctx, cancel := context.WithTimeout(p.background, t.live.Load().ConnectTimeout)
	defer cancel()
	switch t.tls.Mode() {
	case certs.Allow:
		d, err := p.attempt(ctx, t, key, false)
		if refusedPlain(err) {
			return p.attempt(ctx, t, key, true)
		}
		return d, err
	case certs.Prefer:
		d, err := p.attempt(ctx, t, key, true)
		if errors.Is(err, errNoTLS) || refusedPlain(err) {
			return p.attempt(ctx, t, key, false)
		}
		return d, err
	}
	return p.attempt(ctx, t, key, t.tls.Mode() != certs.Disable)
}

// errNoTLS: the server does not speak TLS.
var errNoTLS = errors.New("the server does not support TLS")

// refusedPlain tells whether the server refuses this kind of connection by its
// pg_hba.conf, in which case libpq tries the other kind.
func refusedPlain(err error) bool {
	var d *DialError
	return errors.As(err, &d) && d.Said != nil && d.Said.Code == "28000"
}

func (p *Pooler) attempt(ctx context.Context, t *target, key connpool.Key, encrypt bool) (*dialled, error) {
	fd, err := p.socket(ctx, t)
	if err != nil {
		return nil, &DialError{Cause: err}
	}
	d := &dialled{fd: fd}
	err = p.converse(ctx, t, key, d, encrypt && !t.cfg.Unix())
	if err != nil {
		awaitEnd(fd)
		closeFD(fd)
		var de *DialError
		if errors.As(err, &de) || errors.Is(err, errNoTLS) && t.tls.Mode() == certs.Prefer {
			return nil, err
		}
		return nil, &DialError{Cause: err}
	}
	return d, nil
}

// converse speaks TLS and logs in on the socket of d.
func (p *Pooler) converse(ctx context.Context, t *target, key connpool.Key, d *dialled, encrypt bool) error {
	if !encrypt {
		conn := newFileConn(d.fd)
		defer conn.Close()
		stop := interruptAt(ctx, conn)
		defer stop()
		return p.loginServer(t, key, d, conn, nil)
	}
	if t.cfg.TLS.Negotiation != config.NegotiateDirect {
		if err := askTLS(ctx, d.fd); err != nil {
			return err
		}
	}
	tlsState, err := eventloop.HandshakeClient(ctx, d.fd, nil, t.tls.Config(t.cfg.Host), func(conn *tls.Conn) error {
		stop := interruptAt(ctx, conn)
		defer stop()
		state := conn.ConnectionState()
		if t.cfg.TLS.Negotiation == config.NegotiateDirect && state.NegotiatedProtocol != certs.ALPN {
			return fmt.Errorf("the server did not negotiate ALPN %q", certs.ALPN)
		}
		var endPoint []byte
		if len(state.PeerCertificates) > 0 {
			endPoint = certs.EndPoint(state.PeerCertificates[0])
		}
		return p.loginServer(t, key, d, conn, endPoint)
	})
	d.tls = tlsState
	return err
}

// askTLS sends an SSLRequest and reads the one byte of the answer, no more: what
// follows in clear text must never be taken for the server's (CVE-2021-23222).
func askTLS(ctx context.Context, fd int) error {
	conn := newFileConn(fd)
	defer conn.Close()
	stop := interruptAt(ctx, conn)
	defer stop()
	if _, err := conn.Write(protocol.AppendSSLRequest(nil)); err != nil {
		return err
	}
	var b [1]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return fmt.Errorf("read the answer to SSLRequest: %w", err)
	}
	switch b[0] {
	case 'S':
		return nil
	case 'N':
		return errNoTLS
	}
	return fmt.Errorf("the server answered SSLRequest with %q", b[0])
}

// lookup finds a route without using it.
func (t *target) lookup(k routeKey) *route {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.routes[k]
}
