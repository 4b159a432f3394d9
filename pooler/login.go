package pooler

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"
	"unique"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/auth"
	"github.com/multipooler/multipooler/certs"
	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// login is a client between accept and the start of its session: startup
// packet, TLS, authentication. It runs on the loop; the TLS handshake and
// PBKDF2 run elsewhere, and while they do, nothing is read.
//
//	startup ──SSLRequest──▶ handshake (off the loop) ──▶ startup
//	   │    ──GSSENCRequest─▶ 'N' ──▶ startup
//	   │    ──CancelRequest─▶ (end)
//	   └─StartupMessage─▶ authenticating ⇄ working (off the loop) ──▶ session
type login struct {
	c        *clientConn
	deadline int64
	packet   protocol.Startup
	conv     *auth.ClientAuth
	endPoint []byte // of the certificate shown to this client
	sslSeen  bool
	gssSeen  bool
	working  bool
	encrypt  bool // TLS is on
	away     bool // the socket is with the goroutine of its TLS handshake
	before   int  // bytes of the running delivery in front of the current packet or message
	taken    int  // bytes of the running delivery that are done with
	// cancelling: it was a CancelRequest, which is on its way to the server.
	cancelling bool
	// deriving: working is PBKDF2, which outlives the client; gone tells it
	// that the client has ended, to be spared.
	deriving bool
	gone     atomic.Bool
}

func (lg *login) received(p []byte) int {
	n := 0
	for n < len(p) && !lg.working && lg.c.login == lg && !lg.c.dead {
		var k int
		lg.before = n
		if lg.conv == nil {
			k = lg.startup(p[n:])
		} else {
			k = lg.message(p[n:])
		}
		if k == 0 {
			break
		}
		n += k
	}
	lg.before, lg.taken = 0, 0
	if lg.c.dead {
		return len(p)
	}
	return n
}

// startup takes one packet before authentication; 0 means that it is not whole.
func (lg *login) startup(p []byte) int {
	c := lg.c
	if !lg.encrypt && !lg.sslSeen && protocol.IsTLS(p[0]) {
		return lg.directTLS(p)
	}
	n, ok, err := protocol.StartupLen(p)
	if err != nil {
		lg.refuse(err)
		return len(p)
	}
	if !ok || len(p) < n {
		return 0
	}
	packet, err := protocol.ParseStartup(p[:n])
	if err != nil {
		lg.refuse(err)
		return len(p)
	}
	switch packet.Kind {
	case protocol.StartupSSL:
		if !lg.mayAsk(&lg.sslSeen, protocol.SSLRequestVersion, packet.Kind, len(p) > n) {
			return len(p)
		}
		if c.w.p.frontTLS.Mode() == certs.Disable || c.peer.unix {
			c.ec.Write([]byte{'N'})
			return n
		}
		lg.handshake([]byte{'S'}, nil, n)
		return n
	case protocol.StartupGSSENC:
		if !lg.mayAsk(&lg.gssSeen, protocol.GSSENCRequestVersion, packet.Kind, len(p) > n) {
			return len(p)
		}
		c.ec.Write([]byte{'N'})
		return n
	case protocol.StartupCancel:
		lg.working, lg.cancelling = true, true
		w := c.w
		w.p.cancelRequested(packet.CancelPID, packet.CancelKey, func() {
			w.loop.Post(task(func(*eventloop.Loop) { c.closeQuietly() }))
		})
		return len(p)
	}
	lg.packet = packet
	lg.taken = lg.before + n
	lg.begin()
	return n
}

// mayAsk judges a request for encryption: each kind once, in clear text, and
// with nothing behind it. false: it has been refused.
func (lg *login) mayAsk(seen *bool, version protocol.ProtocolVersion, kind protocol.StartupKind, more bool) bool {
	if *seen || lg.encrypt {
		lg.refuse(protocol.UnsupportedProtocol(version))
		return false
	}
	*seen = true
	if more {
		lg.refuse(protocol.UnencryptedData(kind))
		return false
	}
	return true
}

// directTLS is TLS without an SSLRequest; it must negotiate ALPN.
func (lg *login) directTLS(p []byte) int {
	if lg.c.w.p.frontTLS.Mode() == certs.Disable || lg.c.peer.unix {
		lg.c.w.p.noisy.Info("login refused", zap.Uint64("client", lg.c.id), zap.String("address", lg.c.peer.String()), zap.String("reason", "direct TLS, and TLS is off"))
		lg.c.closeQuietly() // nothing that a TLS client would understand
		return len(p)
	}
	lg.handshake(nil, bytes.Clone(p), len(p))
	return len(p)
}

// handshake leaves the loop for the TLS handshake. first is what to send in
// clear text before it; rest is what the client has sent of its handshake;
// n is the length of the current packet.
func (lg *login) handshake(first, rest []byte, n int) {
	c, w := lg.c, lg.c.w
	lg.away = true
	c.disarm()
	c.ec.Consume(lg.before + n)
	fd, more := c.ec.Detach()
	rest = append(rest, more...)
	cfg, endPoint := w.p.frontTLS.Current()
	lg.encrypt, lg.endPoint = true, endPoint
	left := time.Duration(lg.deadline - w.now())
	direct := first == nil
	w.p.goes.Go(func() {
		t, err := w.p.serverHandshake(fd, first, rest, cfg, left, direct)
		posted := w.loop.Post(task(func(*eventloop.Loop) { lg.encrypted(fd, t, err) }))
		if !posted {
			closeFD(fd)
		}
	})
}

// encrypted is back on the loop after the TLS handshake.
func (lg *login) encrypted(fd int, t *eventloop.TLS, err error) {
	c, w := lg.c, lg.c.w
	lg.away = false
	if c.dead { // cut meanwhile
		closeFD(fd)
		return
	}
	if err == nil {
		c.ec, err = w.loop.Attach(fd, c, t)
	}
	if err != nil {
		closeFD(fd)
		w.p.log.Info("TLS handshake with client failed", zap.Uint64("client", c.id), zap.String("address", c.peer.String()), zap.Error(err))
		w.p.stats.logins[loginTLSFailed].Add(1)
		c.closeQuietly()
		return
	}
	lg.arm()
	if w.p.draining.Load() {
		lg.refuse(shutdownError())
	}
}

func (lg *login) arm() { lg.c.arm(lg.deadline) }

// begin routes the client and starts its authentication.
func (lg *login) begin() {
	c, p := lg.c, lg.c.w.p
	s := &lg.packet
	if version, tell := s.Negotiate(); tell {
		c.ec.Write(protocol.AppendNegotiateProtocolVersion(nil, version, s.Unrecognized))
	}
	if p.draining.Load() {
		lg.refuse(shutdownError())
		return
	}
	if s.Replication != protocol.ReplicationNone {
		lg.refuse(&protocol.Error{Code: "0A000", Message: "replication connections are not supported", Hint: "Connect to the server itself."})
		return
	}
	if p.clients.Load() >= int64(p.config().Client.Max) {
		lg.tooMany() // before the work of its authentication; admit has the last word
		return
	}
	lg.authenticate()
}

// tooMany refuses a client for which there is no room.
func (lg *login) tooMany() {
	p := lg.c.w.p
	p.stats.logins[loginTooMany].Add(1)
	lg.refuse(&protocol.Error{
		Code: "53300", Message: "sorry, too many clients already",
		Detail: fmt.Sprintf("There are %d clients, the most that --max-clients allows.", p.config().Client.Max),
		Hint:   "Raise --max-clients.",
	})
}

func (lg *login) authenticate() {
	c, p := lg.c, lg.c.w.p
	cfg := p.config()
	opts := auth.ClientAuthOptions{EndPoint: lg.endPoint, Key: p.processKey}
	users := p.users.Load()
	opts.Mock = users.Mock()
	if t := c.ec.TLS(); t != nil {
		opts.CertName, opts.CertVerified = certs.CommonName(t.ConnectionState())
	} else if p.frontTLS.Mode().Requires() && !c.peer.unix {
		lg.refuse(&protocol.Error{Code: "28000", Message: "connection requires TLS", Hint: "Use sslmode=require; --tls-mode decides."})
		return
	}
	opts.RequireCertName = p.frontTLS.Mode() == certs.VerifyFull && !c.peer.unix
	method, _ := auth.ParseMethod(string(cfg.Auth.Type)) // validated by config
	lg.conv = auth.NewClientAuth(method, lg.packet.User, users, opts)
	out, step := lg.conv.Start(nil)
	lg.step(out, step)
}

// message takes one 'p' message; 0 means that it is not whole.
func (lg *login) message(p []byte) int {
	if p[0] != byte(protocol.MsgPassword) {
		lg.fail(lg.conv.Unexpected(p[0]))
		return len(p)
	}
	body, ok, err := protocol.PasswordHeader(p)
	if err != nil {
		lg.refuse(err)
		return len(p)
	}
	if !ok || len(p) < protocol.HeaderLen+body {
		return 0
	}
	n := protocol.HeaderLen + body
	lg.taken = lg.before + n
	out, step := lg.conv.Message(nil, p[protocol.HeaderLen:n])
	lg.step(out, step)
	return n
}

func (lg *login) step(out []byte, step auth.Step) {
	c, w := lg.c, lg.c.w
	switch step {
	case auth.NeedMessage:
		c.ec.Write(out)
	case auth.NeedWork:
		if len(out) > 0 {
			c.ec.Write(out)
		}
		lg.working, lg.deriving = true, true
		conv := lg.conv
		w.p.goes.Go(func() {
			w.p.crypto.acquire()
			if !lg.gone.Load() {
				conv.Work()
			}
			w.p.crypto.release()
			w.loop.Post(task(func(*eventloop.Loop) {
				lg.working, lg.deriving = false, false
				if c.dead {
					w.p.loginOver()
					return
				}
				out, step := conv.Resume(nil)
				lg.step(out, step)
				if !c.dead {
					c.ec.Redeliver()
				}
			}))
		})
	case auth.Failed:
		lg.fail(lg.conv.Err())
	case auth.Done:
		c.ec.Write(out)
		lg.done()
	}
}

// fail refuses a client that could not prove who it is.
func (lg *login) fail(e *auth.Error) {
	c, p := lg.c, lg.c.w.p
	p.stats.logins[loginFailed].Add(1)
	p.log.Info("login failed", zap.Uint64("client", c.id), zap.String("address", c.peer.String()),
		zap.String("user", lg.packet.User), zap.String("database", lg.packet.Database), zap.Error(e))
	c.fatal(&protocol.Error{Code: e.Code, Message: e.Message, Detail: e.Detail})
}

// refuse ends a login for another reason than its proof.
func (lg *login) refuse(err error) {
	c := lg.c
	e := asProtocolError(err)
	c.w.p.log.Info("login refused", zap.Uint64("client", c.id), zap.String("address", c.peer.String()),
		zap.String("user", lg.packet.User), zap.String("database", lg.packet.Database), zap.String("code", e.Code), zap.String("reason", e.Message))
	c.fatal(e)
}

// done starts the session of an authenticated client, or its console.
func (lg *login) done() {
	c, p := lg.c, lg.c.w.p
	s := &lg.packet
	if isConsole(s.Database) {
		lg.console()
		return
	}
	cfg := p.config()
	tc, ok := cfg.Route(s.Database)
	var t *target
	if ok {
		t = p.target(tc.Name)
	}
	if t == nil {
		p.stats.logins[loginFailed].Add(1)
		lg.refuse(&protocol.Error{
			Code: "3D000", Message: fmt.Sprintf("database %q does not exist", s.Database),
			Detail: "No target serves this database.",
		})
		return
	}
	mode := poolMode(cfg.PoolModeFor(tc, s.Database, s.User))
	w := readWishes(s, mode)
	if w.appName == "" {
		w.appName = tc.AppName
	}
	if !p.admit() {
		lg.tooMany()
		return
	}
	route, err := t.route(s.Database, s.User, mode, w.startup)
	if err != nil {
		p.clients.Add(-1)
		lg.refuse(err)
		return
	}
	if keys, ok := lg.conv.PassThrough(); ok {
		route.keys.Store(&keys)
	}
	pid, key := p.cancels.issue(c, minorOf(s))
	settings := p.interner.Intern(w.settings)
	c.route = route
	c.login = nil
	c.since = c.w.now()
	c.sess = session.New(session.Config{
		Host: c, Settings: settings,
		State: session.State{
			ID: c.id, User: route.user, Database: route.database, Mode: mode,
			AppName: unique.Make(w.appName).Value(), Startup: settings.Pairs(), Minor: minorOf(s), TempPath: w.tempPath,
			CancelPID: pid, CancelKey: key,
		},
	})
	p.loggedIn(c)
	c.sess.Start(route.known(settings))
	c.touched()
}

// minorOf is the minor protocol version that the session uses.
func minorOf(s *protocol.Startup) int {
	v, _ := s.Negotiate()
	return v.Minor()
}

func (lg *login) timeUp(int64) {
	if lg.cancelling {
		lg.c.closeQuietly()
		return
	}
	limit := lg.c.w.p.config().Client.LoginTimeout
	lg.c.w.p.stats.logins[loginTimeout].Add(1)
	lg.refuse(&protocol.Error{
		Code: "08006", Message: fmt.Sprintf("login did not complete within %v", limit),
		Hint: "The limit is --client-login-timeout.",
	})
}

func (lg *login) ended(err error) {
	lg.c.w.p.noisy.Info("client went away during login", zap.Uint64("client", lg.c.id), zap.String("address", lg.c.peer.String()), zap.Error(err))
	lg.c.closeQuietly()
}

func poolMode(m config.PoolMode) session.Mode {
	switch m {
	case config.PoolSession:
		return session.ModeSession
	case config.PoolStatement:
		return session.ModeStatement
	}
	return session.ModeTransaction
}

// serverHandshake runs the TLS handshake of a client in a goroutine of its own.
func (p *Pooler) serverHandshake(fd int, first, rest []byte, cfg *tls.Config, left time.Duration, direct bool) (*eventloop.TLS, error) {
	ctx, cancel := context.WithTimeout(p.ctx, left)
	defer cancel()
	if len(first) > 0 {
		if err := writeAll(fd, first); err != nil {
			return nil, err
		}
	}
	t, err := eventloop.HandshakeServer(ctx, fd, rest, cfg)
	if err != nil {
		return nil, err
	}
	if direct && t.ConnectionState().NegotiatedProtocol != certs.ALPN {
		return nil, fmt.Errorf("direct TLS without ALPN %q", certs.ALPN)
	}
	return t, nil
}
