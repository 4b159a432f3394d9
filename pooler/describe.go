package pooler

import (
	"crypto/tls"
	"errors"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/multipooler/multipooler/eventloop"
	"github.com/multipooler/multipooler/protocol"
	"github.com/multipooler/multipooler/session"
)

// errServerGone refuses a borrow whose server connection was lost on the way.
var errServerGone = &protocol.Error{Severity: protocol.SeverityError, Code: "08006", Message: "the server connection was lost"}

// MarshalLogObject tells who the client is.
func (c *clientConn) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddUint64("client", c.id)
	enc.AddString("address", c.peer.String())
	if c.route != nil {
		enc.AddString("user", c.route.user)
		enc.AddString("database", c.route.database)
	}
	return nil
}

// MarshalLogObject tells which server connection it is.
func (sc *serverConn) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	key := sc.pc.Pool().Key()
	enc.AddUint64("server", sc.pc.ID())
	enc.AddUint32("server_pid", sc.pid)
	enc.AddString("target", sc.target.cfg.Name)
	enc.AddString("user", key.User)
	enc.AddString("database", key.Database)
	return nil
}

// admit counts a client whose session is about to begin, unless there are as
// many as there may be.
func (p *Pooler) admit() bool {
	if p.clients.Add(1) > int64(p.config().Client.Max) {
		p.clients.Add(-1)
		return false
	}
	return true
}

// loginOver follows the end of each login, however it ended.
func (p *Pooler) loginOver() {
	p.loggingIn.Add(-1)
	p.checkEmpty()
}

// loggedIn counts a client whose session begins; admit has counted it.
func (p *Pooler) loggedIn(c *clientConn) {
	p.loginOver()
	p.stats.logins[loginOK].Add(1)
	if ce := p.log.Check(zap.DebugLevel, "client logged in"); ce != nil {
		ce.Write(zap.Inline(c), zap.String("tls", tlsName(c.ec)))
	}
}

// clientEnded counts and logs the end of a session.
func (p *Pooler) clientEnded(c *clientConn, reason session.EndReason, detail string) {
	p.cancels.revoke(c.cancelPID)
	c.route.clients.Add(-1)
	p.clients.Add(-1)
	p.stats.ended(reason)
	if ce := p.log.Check(zap.InfoLevel, "client disconnected"); ce != nil {
		fields := []zap.Field{zap.Inline(c), zap.String("reason", string(reason)), zap.Duration("age", time.Duration(eventloop.Now()-c.connected))}
		if detail != "" {
			fields = append(fields, zap.String("detail", detail))
		}
		if c.lastServerPID != 0 {
			fields = append(fields, zap.Uint32("server_pid", c.lastServerPID))
		}
		ce.Write(fields...)
	}
	p.checkEmpty()
}

// serverClosed counts and logs the end of a server connection.
func (p *Pooler) serverClosed(sc *serverConn) {
	p.servers.remove(sc)
	p.stats.closes[sc.reason].Add(1)
	fields := []zap.Field{
		zap.Inline(sc), zap.String("reason", closeReasonNames[sc.reason]),
		zap.Duration("age", time.Duration(eventloop.Now()-sc.opened)),
	}
	if doubt := sc.srv.Doubt(); doubt != "" {
		fields = append(fields, zap.String("detail", doubt))
	}
	p.log.Info("server connection closed", fields...)
}

// asProtocolError makes any error one that a client can be sent.
func asProtocolError(err error) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e
	}
	return &protocol.Error{Code: "08006", Message: err.Error()}
}

// tlsName is the protocol and cipher of a connection, "" without TLS.
func tlsName(ec *eventloop.Conn) string {
	t := ec.TLS()
	if t == nil {
		return ""
	}
	s := t.ConnectionState()
	return tls.VersionName(s.Version) + "/" + tls.CipherSuiteName(s.CipherSuite)
}
