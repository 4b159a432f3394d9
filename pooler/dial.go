package pooler

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/multipooler/multipooler/admin"
	"github.com/multipooler/multipooler/auth"
	"github.com/multipooler/multipooler/certs"
	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/connpool"
	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// maxLoginMessage bounds a message of a server during login, maxLogin all of
// them: the time for it alone would let a server fill the memory.
const (
	maxLoginMessage = 64 << 10
	maxLogin        = 1 << 20
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

// loginServer runs the startup phase (manual, 55.2.1) until ReadyForQuery.
func (p *Pooler) loginServer(t *target, key connpool.Key, d *dialled, conn io.ReadWriter, endPoint []byte) error {
	binding := auth.BindingPrefer
	switch t.live.Load().ChannelBinding {
	case "disable":
		binding = auth.BindingDisable
	case "require":
		binding = auth.BindingRequire
	}
	secret := t.secretFor(key.User, p.users.Load())
	if secret.Kind() == auth.KindNone {
		if r := t.lookup(routeKey{key.Database, key.User, key.Startup}); r != nil && r.keys.Load() != nil {
			secret = *r.keys.Load()
		}
	}
	conv := auth.NewServerLogin(key.User, secret, auth.ServerLoginOptions{EndPoint: endPoint, Binding: binding})
	if _, err := conn.Write(protocol.AppendStartup(nil, protocol.Protocol30, startupParams(t, key))); err != nil {
		return err
	}
	in := bufio.NewReaderSize(conn, 4<<10)
	admitted := false
	for total := 0; ; {
		typ, body, err := readLoginMessage(in)
		if err != nil {
			return err
		}
		if total += protocol.HeaderLen + len(body); total > maxLogin {
			return fmt.Errorf("the server sent more than %d bytes during login", maxLogin)
		}
		switch typ {
		case protocol.MsgAuthentication:
			if admitted {
				return session.ErrProtocol
			}
			m, err := protocol.ReadAuthentication(body)
			if err != nil {
				return err
			}
			reply, done, err := conv.Step(uint32(m.Type), m.Data)
			if err != nil {
				return fmt.Errorf("log in to the server: %w", err)
			}
			admitted = admitted || done
			if len(reply) > 0 {
				if _, err := conn.Write(reply); err != nil {
					return err
				}
			}
		case protocol.MsgParameterStatus:
			name, value, err := protocol.ReadParameterStatus(body)
			if err != nil {
				return err
			}
			d.params = d.params.With(string(name), string(value))
		case protocol.MsgBackendKeyData:
			m, err := protocol.ReadBackendKeyData(body)
			if err != nil {
				return err
			}
			d.pid, d.key = m.PID, append([]byte(nil), m.Key...)
		case protocol.MsgErrorResponse:
			return &DialError{Cause: errors.New("the server refused the login"), Said: protocol.Fields(body).ToError()}
		case protocol.MsgReadyForQuery:
			if !admitted || in.Buffered() > 0 {
				return session.ErrProtocol
			}
			d.method = conv.Method()
			return nil
		case protocol.MsgNoticeResponse, protocol.MsgNegotiateProtocolVersion:
		default:
			return session.ErrProtocol
		}
	}
}

// startupParams is what a server connection of this pool starts with.
func startupParams(t *target, key connpool.Key) []protocol.Param {
	params := []protocol.Param{{Name: "user", Value: key.User}, {Name: "database", Value: key.Database}}
	if options := t.live.Load().Options; options != "" {
		params = append(params, protocol.Param{Name: "options", Value: options})
	}
	return append(params, decode(key.Startup)...)
}

// lookup finds a route without using it.
func (t *target) lookup(k routeKey) *route {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.routes[k]
}

func readLoginMessage(in *bufio.Reader) (protocol.Type, []byte, error) {
	head, err := in.Peek(protocol.HeaderLen)
	if err != nil {
		return 0, nil, err
	}
	typ, size, _, err := protocol.BackendHeader(head)
	if err != nil {
		return 0, nil, err
	}
	if size > maxLoginMessage {
		return 0, nil, fmt.Errorf("the server sent a message of %d bytes during login", size)
	}
	buf := make([]byte, protocol.HeaderLen+size)
	if _, err := io.ReadFull(in, buf); err != nil {
		return 0, nil, err
	}
	return typ, buf[protocol.HeaderLen:], nil
}

// socket connects and returns the bare non-blocking descriptor.
func (p *Pooler) socket(ctx context.Context, t *target) (int, error) {
	cfg := p.config()
	dialer := net.Dialer{KeepAliveConfig: serverKeepalive(cfg.TCPKeepalive, cfg.Server.CheckPeriod)}
	conn, err := dialer.DialContext(ctx, t.cfg.Network(), t.cfg.Address())
	if err != nil {
		return -1, err
	}
	defer conn.Close()
	return dupSocket(conn)
}

// serverKeepalive makes the kernel notice within period that an idle server has
// vanished without a word: the first probe after half of it, then three. The
// socket of a parked connection is watched by its loop, so that this end, like
// any other, is seen at once and needs no query. (TCP_USER_TIMEOUT would watch
// busy connections too, but it also cuts a COPY IN that waits for a lock.)
// Without a period, --tcp-keepalive or the system decides.
func serverKeepalive(idle, period time.Duration) net.KeepAliveConfig {
	const probes = 3
	k := net.KeepAliveConfig{Enable: true, Idle: -1, Interval: -1, Count: -1}
	if idle > 0 {
		k.Idle = max(idle, time.Second)
	}
	if period > 0 {
		half := max(period/2, time.Second)
		if k.Idle < 0 || k.Idle > half {
			k.Idle = half
		}
		k.Interval, k.Count = max(half/probes, time.Second), probes
	}
	return k
}

// connect opens a blocking connection for a cancel request, with TLS where the
// target's connections have it.
func (p *Pooler) connect(ctx context.Context, t *target) (net.Conn, error) {
	fd, err := p.socket(ctx, t)
	if err != nil {
		return nil, err
	}
	encrypt := t.tls.Mode() >= certs.Prefer && !t.cfg.Unix()
	if encrypt && t.cfg.TLS.Negotiation != config.NegotiateDirect {
		err := askTLS(ctx, fd)
		switch {
		case errors.Is(err, errNoTLS) && t.tls.Mode() == certs.Prefer:
			encrypt = false
			closeFD(fd)
			if fd, err = p.socket(ctx, t); err != nil {
				return nil, err
			}
		case err != nil:
			closeFD(fd)
			return nil, err
		}
	}
	f := os.NewFile(uintptr(fd), "socket")
	raw, err := net.FileConn(f)
	f.Close() // net.FileConn has made a duplicate
	if err != nil || !encrypt {
		return raw, err
	}
	conn := tls.Client(raw, t.tls.Config(t.cfg.Host))
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// fileConn reads and writes a duplicate of a socket, parking the goroutine.
type fileConn struct{ *os.File }

func newFileConn(fd int) fileConn {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		dup = -1 // every call will say so
	}
	return fileConn{os.NewFile(uintptr(dup), "socket")}
}

// interruptAt makes reads and writes fail once ctx has ended. The returned
// function undoes it and waits for it.
func interruptAt(ctx context.Context, conn interface{ SetDeadline(time.Time) error }) (undo func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-done
		}
		_ = conn.SetDeadline(time.Time{})
	}
}

// awaitEnd waits for the server's EOF on a connection that came to nothing. One
// that goes on talking is not waited for.
func awaitEnd(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_WR)
	conn := newFileConn(fd)
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(dialQuarantine))
	_, _ = io.CopyN(io.Discard, conn.File, maxLogin)
}

// dupSocket duplicates the descriptor of a net.Conn or net.Listener.
func dupSocket(conn any) (int, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("no descriptor in a %T", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, derr := -1, error(nil)
	err = raw.Control(func(s uintptr) { fd, derr = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, derr)
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// writeAll writes a few bytes to a socket whose buffer is empty.
func writeAll(fd int, p []byte) error {
	n, err := unix.Write(fd, p)
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	return err
}

func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
